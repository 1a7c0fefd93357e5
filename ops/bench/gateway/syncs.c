/* Preloaded into a process: counts what it syncs, in 8 bytes at the start of the file SYNCS_FILE.

   The file is mapped, so whoever reads it sees the count of this moment, and the count costs one
   atomic addition. A process that cannot map it ends: a bench without the count would be worthless. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static uint64_t *count;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("SYNCS_FILE");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    void *mapped = fd < 0 ? MAP_FAILED : mmap(0, 8, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED) abort();
    close(fd);
    count = mapped;
}

static int counted(const char *name, int fd) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    __atomic_add_fetch(count, 1, __ATOMIC_RELAXED);
    return real(fd);
}

int fsync(int fd) { return counted("fsync", fd); }
int fdatasync(int fd) { return counted("fdatasync", fd); }
