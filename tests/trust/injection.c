/* Calls of a process below one folder, counted; one of them fails, is cut short, or kills it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define MOST 65536
#define SHORT (-1)
#define KILL (-2)

static char folder[4096];
static atomic_int armed;
static atomic_long calls;
static long at;
static int what, lasting;
static const char *last = "";
static atomic_char ours[MOST];

void trust_arm(const char *path, long number, int error, int all) {
  strncpy(folder, path, sizeof folder - 1);
  at = number; what = error; lasting = all;
  atomic_store(&calls, 0);
  atomic_store(&armed, 1);
}
void trust_disarm(void) { atomic_store(&armed, 0); }
long trust_count(void) { return atomic_load(&calls); }
const char *trust_last(void) { return last; }

/* 0: go on; 1: fail with errno; 2: cut short. */
static int step(const char *name) {
  if (!atomic_load(&armed)) return 0;
  long number = atomic_fetch_add(&calls, 1);
  if (at < 0 || number < at || (number > at && !lasting)) return 0;
  last = name;
  if (what == KILL) kill(getpid(), SIGKILL);
  if (what == SHORT) return 2;
  errno = what;
  return 1;
}
static int below(const char *path) {
  return atomic_load(&armed) && path && !strncmp(path, folder, strlen(folder));
}
static int known(int fd) { return fd >= 0 && fd < MOST && atomic_load(&ours[fd]); }
/* Paths that are not absolute begin at an open folder. */
static int below_at(int dir, const char *path) {
  return below(path) || (atomic_load(&armed) && path && path[0] != '/' && known(dir));
}
#define REAL(type, name, ...) \
  static type (*real)(__VA_ARGS__); \
  if (!real) real = (type (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

#define OPEN(name) \
  int name(const char *path, int flags, ...) { \
    REAL(int, #name, const char *, int, ...); \
    mode_t mode = 0; \
    if (flags & (O_CREAT | O_TMPFILE)) { \
      va_list list; va_start(list, flags); mode = va_arg(list, mode_t); va_end(list); \
    } \
    int mine = below(path); \
    if (mine && step(#name) == 1) return -1; \
    int fd = real(path, flags, mode); \
    if (fd >= 0 && fd < MOST) atomic_store(&ours[fd], mine); \
    return fd; \
  }
OPEN(open)
OPEN(open64)

int openat(int dir, const char *path, int flags, ...) {
  REAL(int, "openat", int, const char *, int, ...);
  va_list list; va_start(list, flags); mode_t mode = va_arg(list, mode_t); va_end(list);
  int mine = below_at(dir, path);
  if (mine && step("openat") == 1) return -1;
  int fd = real(dir, path, flags, mode);
  if (fd >= 0 && fd < MOST) atomic_store(&ours[fd], mine);
  return fd;
}

int close(int fd) {
  REAL(int, "close", int);
  if (fd >= 0 && fd < MOST) atomic_store(&ours[fd], 0);
  return real(fd);
}

#define CUT(size) (how == 2 && (size) > 1 ? (size) / 2 : (size))
#define MOVE(name, type, kind) \
  ssize_t name(int fd, kind buffer, size_t size) { \
    REAL(ssize_t, #name, int, kind, size_t); \
    int how = known(fd) ? step(#name) : 0; \
    return how == 1 ? -1 : real(fd, buffer, CUT(size)); \
  }
MOVE(read, ssize_t, void *)
MOVE(write, ssize_t, const void *)

#define MOVE_AT(name, kind, offset_type) \
  ssize_t name(int fd, kind buffer, size_t size, offset_type offset) { \
    REAL(ssize_t, #name, int, kind, size_t, offset_type); \
    int how = known(fd) ? step(#name) : 0; \
    return how == 1 ? -1 : real(fd, buffer, CUT(size), offset); \
  }
MOVE_AT(pread, void *, off_t)
MOVE_AT(pread64, void *, off64_t)
MOVE_AT(pwrite, const void *, off_t)
MOVE_AT(pwrite64, const void *, off64_t)

#define VECTOR(name, offset_type) \
  ssize_t name(int fd, const struct iovec *parts, int count, offset_type offset) { \
    REAL(ssize_t, #name, int, const struct iovec *, int, offset_type); \
    int how = known(fd) ? step(#name) : 0; \
    if (how == 1) return -1; \
    struct iovec cut = {parts[0].iov_base, CUT(parts[0].iov_len)}; \
    return how == 2 ? real(fd, &cut, 1, offset) : real(fd, parts, count, offset); \
  }
VECTOR(preadv, off_t)
VECTOR(preadv64, off64_t)

#define ON_HANDLE(name) \
  int name(int fd) { \
    REAL(int, #name, int); \
    return known(fd) && step(#name) == 1 ? -1 : real(fd); \
  }
ON_HANDLE(fsync)
ON_HANDLE(fdatasync)

#define ON_PATH(name, kind) \
  int name(const char *path, kind given) { \
    REAL(int, #name, const char *, kind); \
    return below(path) && step(#name) == 1 ? -1 : real(path, given); \
  }
ON_PATH(mkdir, mode_t)
ON_PATH(chmod, mode_t)
ON_PATH(link, const char *)
ON_PATH(rename, const char *)
ON_PATH(stat, struct stat *)
ON_PATH(stat64, struct stat64 *)
ON_PATH(lstat, struct stat *)
ON_PATH(lstat64, struct stat64 *)

#define AT_FOLDER(name, kind) \
  int name(int dir, const char *path, kind given) { \
    REAL(int, #name, int, const char *, kind); \
    return below_at(dir, path) && step(#name) == 1 ? -1 : real(dir, path, given); \
  }
AT_FOLDER(mkdirat, mode_t)
AT_FOLDER(unlinkat, int)

#define FSTATAT(name, kind) \
  int name(int dir, const char *path, kind *found, int flags) { \
    REAL(int, #name, int, const char *, kind *, int); \
    return below_at(dir, path) && step(#name) == 1 ? -1 : real(dir, path, found, flags); \
  }
FSTATAT(fstatat, struct stat)
FSTATAT(fstatat64, struct stat64)

int fchmod(int fd, mode_t mode) {
  REAL(int, "fchmod", int, mode_t);
  return known(fd) && step("fchmod") == 1 ? -1 : real(fd, mode);
}
int fchown(int fd, uid_t owner, gid_t group) {
  REAL(int, "fchown", int, uid_t, gid_t);
  return known(fd) && step("fchown") == 1 ? -1 : real(fd, owner, group);
}

#define ON_NAME(name) \
  int name(const char *path) { \
    REAL(int, #name, const char *); \
    return below(path) && step(#name) == 1 ? -1 : real(path); \
  }
ON_NAME(unlink)
ON_NAME(rmdir)
ON_NAME(remove)

int fstat(int fd, struct stat *found) {
  REAL(int, "fstat", int, struct stat *);
  return known(fd) && step("fstat") == 1 ? -1 : real(fd, found);
}

#define MAP(name, offset_type) \
  void *name(void *where, size_t size, int protection, int flags, int fd, offset_type offset) { \
    REAL(void *, #name, void *, size_t, int, int, int, offset_type); \
    if (known(fd) && step(#name) == 1) return MAP_FAILED; \
    return real(where, size, protection, flags, fd, offset); \
  }
MAP(mmap, off_t)
MAP(mmap64, off64_t)

#include <dirent.h>
DIR *opendir(const char *path) {
  REAL(DIR *, "opendir", const char *);
  return below(path) && step("opendir") == 1 ? NULL : real(path);
}
