// Process 1 of the emulated machine: runs commands in order until one fails, reports the exit status of the last one on
// the serial console, powers off. The commands and their environment come NUL-separated from /commands and /environment
// of the initial RAM disk; an empty word ends a command.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/io.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_WORDS = 256, MAX_BYTES = 1 << 16 };

// Splits a file of NUL-terminated words; the list ends with NULL.
static char **read_words(const char *path, int *words_read) {
  static char storage[2][MAX_BYTES];
  static char *lists[2][MAX_WORDS + 1];
  static int used;
  char *text = storage[used];
  char **words = lists[used++];
  const int file = open(path, O_RDONLY);
  const ssize_t bytes = file < 0 ? 0 : read(file, text, MAX_BYTES - 1);
  int count = 0;
  for (char *word = text; word < text + bytes && count < MAX_WORDS; word += strlen(word) + 1) words[count++] = word;
  words[count] = NULL;
  *words_read = count;
  if (file >= 0) close(file);
  return words;
}

static void power_off(void) {
  sync();
  usleep(200000);  // lets the serial port drain
  if (ioperm(0x8900, 1, 1) == 0) {
    // Bochs ends the emulation when this word is written to this port.
    for (const char *letter = "Shutdown"; *letter; ++letter) outb((unsigned char)*letter, 0x8900);
  }
  reboot(RB_POWER_OFF);
  for (;;) pause();
}

static void put(const char *text) {
  for (size_t left = strlen(text); left > 0;) {
    const ssize_t written = write(STDOUT_FILENO, text, left);
    if (written <= 0) return;
    text += written;
    left -= (size_t)written;
  }
}

// The command writes into a pipe, so that it does not take the console for a terminal with someone in front of it.
static int run(char **command, char **environment) {
  int ends[2];
  if (pipe(ends) != 0) return 126;
  const pid_t child = fork();
  if (child < 0) return 126;
  if (child == 0) {
    dup2(ends[1], STDOUT_FILENO);
    dup2(ends[1], STDERR_FILENO);
    close(ends[0]);
    close(ends[1]);
    execve(command[0], command, environment);
    fprintf(stderr, "cannot run %s: %s\n", command[0], strerror(errno));
    _exit(127);
  }
  close(ends[1]);
  char text[4097];
  for (ssize_t bytes; (bytes = read(ends[0], text, sizeof text - 1)) > 0;) {
    text[bytes] = 0;
    put(text);
  }
  close(ends[0]);
  int status = 0;
  while (wait(&status) != child) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int main(void) {
  mkdir("/proc", 0755);
  mkdir("/sys", 0755);
  mkdir("/dev", 0755);
  mkdir("/tmp", 01777);
  mount("proc", "/proc", "proc", 0, NULL);
  mount("sysfs", "/sys", "sysfs", 0, NULL);
  mount("devtmpfs", "/dev", "devtmpfs", 0, NULL);
  const int console = open("/dev/ttyS0", O_RDWR);
  if (console >= 0) {
    dup2(console, STDIN_FILENO);
    dup2(console, STDOUT_FILENO);
    dup2(console, STDERR_FILENO);
  }
  int words, variables;
  char **command = read_words("/commands", &words);
  char **environment = read_words("/environment", &variables);
  put("\n@@BEGIN\n");
  int code = 126;
  char **const last = command + words;
  for (char **word = command; word < last; ++word) {
    if (**word != 0) continue;
    *word = NULL;
    code = run(command, environment);
    if (code != 0) break;
    command = word + 1;
  }
  char line[32];
  snprintf(line, sizeof line, "\n@@EXIT %d\n", code);
  put(line);
  power_off();
}
