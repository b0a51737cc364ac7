/* A process with two copies of a library that has the names of OpenSSL's functions. One source for
 * all parts: with COPY a copy, whose functions return numbers of their own, and which is of the
 * major version MAJOR; with CALLER a library whose functions end with a call of them; else the
 * program, which is linked to one copy, and loads the library, its argument, which is linked to the
 * other. It prints what each function returned, all called from one place. */
int SSL_write(void *connection, const void *buffer, int size);
int SSL_read(void *connection, void *buffer, int size);

#ifdef COPY

int SSL_write(void *connection, const void *buffer, int size)
{
    (void)connection, (void)buffer, (void)size;
    return COPY;
}

int SSL_read(void *connection, void *buffer, int size)
{
    (void)connection, (void)buffer, (void)size;
    return COPY + 1;
}

unsigned long OpenSSL_version_num(void)
{
    return (unsigned long)MAJOR << 28;
}

#else

/* The address that these leave is that of their caller. */
static __attribute__((noinline)) int do_write(void *connection, void *buffer, int size)
{
    return SSL_write(connection, buffer, size);
}

static __attribute__((noinline)) int do_read(void *connection, void *buffer, int size)
{
    return SSL_read(connection, buffer, size);
}

int call(int which);

int call(int which)
{
    static int (*volatile const functions[])(void *, void *, int) = {do_write, do_read};
    static char connection, buffer[100];
    int got = functions[which](&connection, buffer, sizeof buffer);
    return got + buffer[0]; /* so that this is no last call */
}

#ifndef CALLER

#include <dlfcn.h>
#include <stdio.h>

int main(int count, char **words)
{
    void *library = count < 2 ? NULL : dlopen(words[1], RTLD_NOW);
    int (*other)(int) = library == NULL ? NULL : (int (*)(int))dlsym(library, "call");
    if (other == NULL)
        return 1;
    for (int which = 0; which < 2; which++)
        printf("%d %d\n", call(which), other(which));
    return 0;
}

#endif
#endif
