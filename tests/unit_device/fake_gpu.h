/* What the stand-ins for the runtimes of GPUs share: numbers from the environment, and a log of what was asked. */
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

static char written[1 << 16];
EXPORT const char* fake_gpu_log(void) { return written; }
EXPORT void fake_gpu_clear(void) { written[0] = '\0'; }
static int note(const char* format, ...) {
  const size_t used = strlen(written);
  va_list words;
  va_start(words, format);
  vsnprintf(written + used, sizeof written - used, format, words);
  va_end(words);
  return 0;
}

static int number(const char* name, int otherwise) {
  const char* text = getenv(name);
  return text != NULL ? atoi(text) : otherwise;
}

static void* host_memory(size_t bytes) { return aligned_alloc(256, (bytes + 255) / 256 * 256); }
