// Process 1 of the emulated machine: runs one command, reports its exit status on the serial console, powers off.
// The command and its environment come NUL-separated from /command and /environment of the initial RAM disk.
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
static char **read_words(const char *path) {
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
  char **command = read_words("/command");
  char **environment = read_words("/environment");
  printf("\n@@BEGIN\n");
  fflush(stdout);
  int status = 0;
  const pid_t child = command[0] ? fork() : -1;
  if (child == 0) {
    execve(command[0], command, environment);
    fprintf(stderr, "cannot run %s: %s\n", command[0], strerror(errno));
    _exit(127);
  }
  while (child > 0 && wait(&status) != child) {
  }
  const int code = child < 0 ? 126 : WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  printf("\n@@EXIT %d\n", code);
  fflush(stdout);
  power_off();
}
