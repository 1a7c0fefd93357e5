/* Preloaded into a process: records, in one total order, what it asks of the disk below a folder.

   RECORD_FOLDER   absolute path; files of SQLite's shared memory (-shm) are left out
   RECORD_JOURNAL  where the record goes, outside of that folder

   Entry: u8 kind, u32 length of path, u64 offset, u64 length of data, path, data; little-endian.
   Kinds: w write at offset, t truncate to offset, s sync. A write or truncation is recorded after
   it was made and a sync after it returned, so whatever an entry claims was true by then. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static pthread_mutex_t order = PTHREAD_MUTEX_INITIALIZER;
static int journal = -1;

#define REAL(result, name, ...) \
    static result (*real)(__VA_ARGS__); \
    if (!real) real = (result (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

static void put(const void *data, size_t length) {
    static ssize_t (*real)(int, const void *, size_t);
    if (!real) real = (ssize_t (*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write");
    while (length) {
        ssize_t done = real(journal, data, length);
        if (done < 0) abort();
        data = (const char *)data + done;
        length -= done;
    }
}

/* Length of the path of fd if it is one to record, else 0. */
static ssize_t recorded(int fd, char *path, size_t room) {
    const char *folder = getenv("RECORD_FOLDER");
    char link[64];
    if (!folder) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, room - 1);
    if (length <= 0) return 0;
    path[length] = 0;
    if (strncmp(path, folder, strlen(folder))) return 0;
    if (length > 4 && !strcmp(path + length - 4, "-shm")) return 0;
    if (journal < 0)
        journal = open(getenv("RECORD_JOURNAL"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    return journal < 0 ? (abort(), 0) : length;
}

static void record(char kind, const char *path, uint32_t name, uint64_t offset, const void *data,
                   uint64_t length) {
    put(&kind, 1);
    put(&name, sizeof name);
    put(&offset, sizeof offset);
    put(&length, sizeof length);
    put(path, name);
    if (length) put(data, length);
}

static ssize_t written(int fd, const void *data, size_t length, off_t offset, int positioned) {
    REAL(ssize_t, "pwrite64", int, const void *, size_t, off_t);
    static ssize_t (*plain)(int, const void *, size_t);
    if (!plain) plain = (ssize_t (*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write");
    char path[4096];
    ssize_t name = recorded(fd, path, sizeof path);
    if (!name) return positioned ? real(fd, data, length, offset) : plain(fd, data, length);
    pthread_mutex_lock(&order);
    ssize_t done = positioned ? real(fd, data, length, offset) : plain(fd, data, length);
    if (done > 0) {
        off_t at = positioned ? offset : lseek(fd, 0, SEEK_CUR) - done;
        record('w', path, name, at, data, done);
    }
    pthread_mutex_unlock(&order);
    return done;
}

ssize_t pwrite(int fd, const void *data, size_t length, off_t offset) {
    return written(fd, data, length, offset, 1);
}

ssize_t pwrite64(int fd, const void *data, size_t length, off_t offset) {
    return written(fd, data, length, offset, 1);
}

ssize_t write(int fd, const void *data, size_t length) { return written(fd, data, length, 0, 0); }

static int truncated(int fd, off_t size) {
    REAL(int, "ftruncate64", int, off_t);
    char path[4096];
    ssize_t name = recorded(fd, path, sizeof path);
    if (!name) return real(fd, size);
    pthread_mutex_lock(&order);
    int result = real(fd, size);
    if (!result) record('t', path, name, size, 0, 0);
    pthread_mutex_unlock(&order);
    return result;
}

int ftruncate(int fd, off_t size) { return truncated(fd, size); }
int ftruncate64(int fd, off_t size) { return truncated(fd, size); }

static int synced(int fd, int (*real)(int)) {
    char path[4096];
    ssize_t name = recorded(fd, path, sizeof path);
    if (!name) return real(fd);
    /* What is written while the disk is busy is not covered: the entry must not claim it. */
    pthread_mutex_lock(&order);
    int result = real(fd);
    if (!result) record('s', path, name, 0, 0, 0);
    pthread_mutex_unlock(&order);
    return result;
}

int fsync(int fd) {
    REAL(int, "fsync", int);
    return synced(fd, real);
}

int fdatasync(int fd) {
    REAL(int, "fdatasync", int);
    return synced(fd, real);
}
