// What freeze-core's program needs to be a Python (musl_python.py). It is linked with musl, and begins what is frozen beside it.
#include <stddef.h>

void *dlsym(void *, const char *);
int Py_BytesMain(int, char **);
int vsnprintf(char *, size_t, const char *, __builtin_va_list);

// The first function that musl calls of a program: it gets another `main`, that of `python3`.
int __libc_start_main(void *own, int argc, char **argv, void *init, void *fini, void *end) {
    void *const next = (void *)-1L;
    int (*start)(void *, int, char **, void *, void *, void *) = dlsym(next, "__libc_start_main");
    (void)own;
    return start(Py_BytesMain, argc, argv, init, fini, end);
}

// Debian's zlib is compiled for glibc. These are all that it needs and musl lacks.
int __vsnprintf_chk(char *to, size_t most, int flag, size_t room, const char *format, __builtin_va_list list) {
    (void)flag, (void)room;
    return vsnprintf(to, most, format, list);
}

int __snprintf_chk(char *to, size_t most, int flag, size_t room, const char *format, ...) {
    __builtin_va_list list;
    __builtin_va_start(list, format);
    int length = __vsnprintf_chk(to, most, flag, room, format, list);
    __builtin_va_end(list);
    return length;
}
