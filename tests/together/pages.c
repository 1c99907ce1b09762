// A preloaded library that gives a process the rules of a kernel with larger pages: PAGES bytes each, 16384 or 65536.
// As there, mappings begin at a page, calls in the middle of one are invalid, and lengths are whole pages.

#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static size_t page(void) {
    const char *set = getenv("PAGES");
    return set ? strtoul(set, NULL, 10) : 4096;
}

static size_t whole(size_t len) { return (len + page() - 1) & ~(page() - 1); }

static int is_inside(const void *at) { return ((uintptr_t)at & (page() - 1)) != 0; }

static void *invalid(void) {
    errno = EINVAL;
    return MAP_FAILED;
}

// An unused range that begins at a page.
static void *range(size_t len) {
    char *wide = (char *)syscall(SYS_mmap, NULL, len + page(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (wide == MAP_FAILED) return MAP_FAILED;
    char *from = (char *)whole((uintptr_t)wide);
    if (from > wide) syscall(SYS_munmap, wide, (size_t)(from - wide));
    size_t after = page() - (size_t)(from - wide);
    if (after > 0) syscall(SYS_munmap, from + len, after);
    return from;
}

void *mmap(void *at, size_t len, int protection, int flags, int file, off_t offset) {
    if ((size_t)offset & (page() - 1)) return invalid();
    if (flags & (MAP_FIXED | MAP_FIXED_NOREPLACE)) {
        if (is_inside(at)) return invalid();
    } else {
        at = range(whole(len));
        if (at == MAP_FAILED) return at;
        flags |= MAP_FIXED;
    }
    return (void *)syscall(SYS_mmap, at, whole(len), protection, flags, file, offset);
}

void *mmap64(void *at, size_t len, int protection, int flags, int file, off64_t offset) {
    return mmap(at, len, protection, flags, file, offset);
}

int munmap(void *at, size_t len) {
    if (is_inside(at)) return invalid(), -1;
    return (int)syscall(SYS_munmap, at, whole(len));
}

void *mremap(void *at, size_t old, size_t len, int flags, ...) {
    void *to = NULL;
    if (is_inside(at)) return invalid();
    if (flags & MREMAP_FIXED) {
        va_list more;
        va_start(more, flags);
        to = va_arg(more, void *);
        va_end(more);
        if (is_inside(to)) return invalid();
    } else if (flags & MREMAP_MAYMOVE) {
        to = range(whole(len));
        if (to == MAP_FAILED) return to;
        flags |= MREMAP_FIXED;
    }
    return (void *)syscall(SYS_mremap, at, whole(old), whole(len), flags, to);
}

int mprotect(void *at, size_t len, int protection) {
    if (is_inside(at)) return invalid(), -1;
    return (int)syscall(SYS_mprotect, at, whole(len), protection);
}

int madvise(void *at, size_t len, int advice) {
    if (is_inside(at)) return invalid(), -1;
    return (int)syscall(SYS_madvise, at, whole(len), advice);
}

int getpagesize(void) { return (int)page(); }

long sysconf(int name) {
    static long (*theirs)(int);
    if (name == _SC_PAGESIZE) return (long)page();
    extern void *dlsym(void *, const char *);
    if (!theirs) theirs = (long (*)(int))(uintptr_t)dlsym((void *)-1L, "sysconf");
    return theirs(name);
}
