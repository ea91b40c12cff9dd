/* Checks of the C programs here: a program goes on behind one that fails, and says how many did. */
#ifndef FLASHWAVE_TESTS_ABI_CHECK_H_
#define FLASHWAVE_TESTS_ABI_CHECK_H_

#include <stdio.h>
#include <string.h>

#include "flashwave/flashwave.h"

static int failures = 0;

#define CHECK(condition)                                                                                \
  do {                                                                                                  \
    if (!(condition)) {                                                                                 \
      fprintf(stderr, "%s:%d: %s (last error: %s)\n", __FILE__, __LINE__, #condition, fw_last_error()); \
      ++failures;                                                                                       \
    }                                                                                                   \
  } while (0)

#define CHECK_ERROR(call, status, text)             \
  do {                                              \
    CHECK((call) == (status));                      \
    CHECK(strstr(fw_last_error(), (text)) != NULL); \
  } while (0)

#endif
