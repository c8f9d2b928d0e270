/* Lets the n-th call of a function of libc fail, for files below one folder. Loaded by LD_PRELOAD.
 *
 *   FAIL_CALL    write, pwrite, writev, fsync, rename, mmap or open
 *   FAIL_AT      which call of it fails, from 1 on
 *   FAIL_ONCE    if set, only that one; otherwise all after it fail too, as on a full disk
 *   FAIL_ERRNO   the error, as a number
 *   FAIL_UNDER   the folder
 *   FAIL_COUNT   a file that gets the number of calls of each function when the process ends
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum Call { WRITE, PWRITE, WRITEV, FSYNC, RENAME, MMAP, OPEN, CALLS };
static const char* const names[CALLS] = {"write", "pwrite", "writev", "fsync",
                                         "rename", "mmap", "open"};
static atomic_long calls[CALLS];

static int is_below(const char* path) {
  const char* folder = getenv("FAIL_UNDER");
  char current[PATH_MAX];
  if (path && path[0] != '/') path = getcwd(current, sizeof current);
  return folder && path && strncmp(path, folder, strlen(folder)) == 0;
}

static int is_file_below(int fd) {
  char link[64], path[PATH_MAX + 1];
  struct stat status;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t length = readlink(link, path, PATH_MAX);
  if (length <= 0 || fstat(fd, &status) || !S_ISREG(status.st_mode)) return 0;
  path[length] = 0;
  return is_below(path);
}

/* Whether this call is to fail; it is counted. */
static int fails(enum Call call) {
  const char *wanted = getenv("FAIL_CALL"), *at = getenv("FAIL_AT");
  const long number = atomic_fetch_add(&calls[call], 1) + 1;
  if (!wanted || !at || strcmp(wanted, names[call]) || number < atol(at)) return 0;
  if (getenv("FAIL_ONCE") && number > atol(at)) return 0;
  errno = atoi(getenv("FAIL_ERRNO"));
  return 1;
}

__attribute__((destructor)) static void tell(void) {
  const char* path = getenv("FAIL_COUNT");
  FILE* file = path ? fopen(path, "a") : NULL;
  if (!file) return;
  for (int call = 0; call < CALLS; ++call)
    fprintf(file, "%s %ld\n", names[call], atomic_load(&calls[call]));
  fclose(file);
}

#define ORIGINAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t write(int fd, const void* data, size_t size) {
  if (is_file_below(fd) && fails(WRITE)) return -1;
  return ORIGINAL(write)(fd, data, size);
}

ssize_t pwrite(int fd, const void* data, size_t size, off_t at) {
  if (is_file_below(fd) && fails(PWRITE)) return -1;
  return ORIGINAL(pwrite)(fd, data, size, at);
}

ssize_t pwrite64(int fd, const void* data, size_t size, off64_t at) {
  if (is_file_below(fd) && fails(PWRITE)) return -1;
  return ORIGINAL(pwrite64)(fd, data, size, at);
}

ssize_t writev(int fd, const struct iovec* parts, int count) {
  if (is_file_below(fd) && fails(WRITEV)) return -1;
  return ORIGINAL(writev)(fd, parts, count);
}

int fsync(int fd) {
  if (is_file_below(fd) && fails(FSYNC)) return -1;
  return ORIGINAL(fsync)(fd);
}

int fdatasync(int fd) {
  if (is_file_below(fd) && fails(FSYNC)) return -1;
  return ORIGINAL(fdatasync)(fd);
}

int rename(const char* from, const char* to) {
  if (is_below(to) && fails(RENAME)) return -1;
  return ORIGINAL(rename)(from, to);
}

int renameat(int from_folder, const char* from, int to_folder, const char* to) {
  if (is_below(to) && fails(RENAME)) return -1;
  return ORIGINAL(renameat)(from_folder, from, to_folder, to);
}

void* mmap(void* at, size_t size, int protection, int flags, int fd, off_t offset) {
  if (fd >= 0 && is_file_below(fd) && fails(MMAP)) return MAP_FAILED;
  return ORIGINAL(mmap)(at, size, protection, flags, fd, offset);
}

void* mmap64(void* at, size_t size, int protection, int flags, int fd, off64_t offset) {
  if (fd >= 0 && is_file_below(fd) && fails(MMAP)) return MAP_FAILED;
  return ORIGINAL(mmap64)(at, size, protection, flags, fd, offset);
}

int open(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) ? va_arg(more, mode_t) : 0;
  va_end(more);
  if ((flags & O_CREAT) && is_below(path) && fails(OPEN)) return -1;
  return ORIGINAL(open)(path, flags, mode);
}

int open64(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) ? va_arg(more, mode_t) : 0;
  va_end(more);
  if ((flags & O_CREAT) && is_below(path) && fails(OPEN)) return -1;
  return ORIGINAL(open64)(path, flags, mode);
}
