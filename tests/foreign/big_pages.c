// Preloaded, this gives the mapping calls of a program the rules of a kernel with larger pages, as many of arm64 have them: PAGE_SIZE=65536.
// Only calls from the program itself and from our libraries count. The C library keeps the real size for its heap and stacks.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static uintptr_t page(void)
{
    static uintptr_t size;
    if (size == 0) {
        const char *text = getenv("PAGE_SIZE");
        size = text ? strtoul(text, NULL, 10) : 65536;
    }
    return size;
}

static int is_ours(void *caller)
{
    Dl_info from;
    if (!dladdr(caller, &from) || !from.dli_fname)
        return 0;
    const char *slash = strrchr(from.dli_fname, '/');
    const char *name = slash ? slash + 1 : from.dli_fname;
    // Of the program itself, of the C library, of Python and of Node.
    return strstr(name, ".so") == NULL ? strncmp(name, "stores-", 7) == 0
                                       : strstr(name, "workglow") != NULL || strstr(name, "_native") != NULL;
}
#define OURS is_ours(__builtin_return_address(0))

static int is_aligned(const void *address)
{
    return ((uintptr_t)address & (page() - 1)) == 0;
}

// Room that begins at a page, as every mapping of such a kernel does.
static void *room(size_t length)
{
    char *got = (char *)syscall(SYS_mmap, NULL, length + page(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (got == MAP_FAILED)
        return got;
    char *at = (char *)(((uintptr_t)got + page() - 1) & ~(page() - 1));
    if (at > got)
        syscall(SYS_munmap, got, at - got);
    syscall(SYS_munmap, at + length, got + page() - at);
    return at;
}

void *mmap(void *address, size_t length, int protection, int flags, int file, off_t offset)
{
    if (!OURS || address)
        return (void *)syscall(SYS_mmap, address, length, protection, flags, file, offset);
    if (offset & (off_t)(page() - 1)) {
        errno = EINVAL;
        return MAP_FAILED;
    }
    length = (length + 4095) & ~4095ul;
    void *at = room(length);
    return at == MAP_FAILED ? at : (void *)syscall(SYS_mmap, at, length, protection, flags | MAP_FIXED, file, offset);
}

void *mmap64(void *, size_t, int, int, int, off_t) __attribute__((alias("mmap")));

void *mremap(void *address, size_t from, size_t to, int flags, ...)
{
    va_list rest;
    va_start(rest, flags);
    void *wanted = flags & MREMAP_FIXED ? va_arg(rest, void *) : NULL;
    va_end(rest);
    if (!OURS || (flags & MREMAP_FIXED))
        return (void *)syscall(SYS_mremap, address, from, to, flags, wanted);
    void *at = room(to);
    return at == MAP_FAILED ? at : (void *)syscall(SYS_mremap, address, from, to, flags | MREMAP_FIXED, at);
}

int mprotect(void *address, size_t length, int protection)
{
    if (OURS && !is_aligned(address)) {
        errno = EINVAL;
        return -1;
    }
    return syscall(SYS_mprotect, address, length, protection);
}

int madvise(void *address, size_t length, int advice)
{
    if (OURS && !is_aligned(address)) {
        errno = EINVAL;
        return -1;
    }
    return syscall(SYS_madvise, address, length, advice);
}

long sysconf(int name)
{
    static long (*next)(int);
    if (!next)
        next = (long (*)(int))dlsym(RTLD_NEXT, "sysconf");
    long real = next(name);
    if (!OURS)
        return real;
    if (name == _SC_PHYS_PAGES || name == _SC_AVPHYS_PAGES)
        return real / ((long)page() / next(_SC_PAGESIZE));
    return name == _SC_PAGESIZE ? (long)page() : real;
}
