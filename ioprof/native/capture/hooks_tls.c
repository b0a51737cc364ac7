/* Hooks of OpenSSL, where a program is linked to it dynamically, as Python's module `ssl` mostly
 * is: what is read and written there is what was meant. A program that has a copy of OpenSSL of its
 * own is not seen here.
 *
 * Several copies of OpenSSL may be in one process, so that the function to call is that which the
 * caller is linked to, as the dynamic linker decides: that of the global scope; if it has none, or
 * one of another version, that of the caller's library, as Python's modules are loaded with a scope
 * of their own. */
#include "exchanges.h"
#include "guard.h"
#include "peers.h"
#include "process.h"
#include "real.h"

#include <dlfcn.h>
#include <string.h>

#define NUM_CALLERS 32

/* Where a call of one hook came from, and what it is passed on to. */
struct tls_caller {
    _Atomic(void *) address;
    _Atomic(void *) function;
    _Atomic(void *) get_descriptor; /* SSL_get_fd of the same copy; NULL: it has none */
};

/* One address may call several hooks: functions that end with a call of one leave the address of
 * their own caller. */
struct tls_callers {
    _Atomic uint32_t count;
    struct tls_caller entries[NUM_CALLERS];
};

typedef int descriptor_getter(const void *connection);
typedef unsigned long version_getter(void);

/* By which the versions of the symbols are told apart; 0: there is none, as before OpenSSL 1.1. */
static unsigned long major_version(void *scope)
{
    version_getter *get = (version_getter *)dlsym(scope, "OpenSSL_version_num");
    return get == NULL ? 0 : get() >> 28;
}

/* The caller's library stays loaded then. The program itself has the global scope, behind this
 * library. */
static void *find_function(void *caller, const char *name)
{
    const char *path = library_at(caller);
    void *library = path == NULL || path[0] == '\0' ? NULL : dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
    void *global = dlsym(RTLD_NEXT, name), *own = library == NULL ? NULL : dlsym(library, name);
    bool is_own =
        global == NULL || (own != NULL && major_version(library) != major_version(RTLD_NEXT));
    return is_own ? own : global;
}

/* The real function for a caller; what was found is kept in the table if there is room for it. */
static void *real_for(struct tls_callers *callers, void *caller, const char *name,
                      void **get_descriptor)
{
    uint32_t known = atomic_load_explicit(&callers->count, memory_order_acquire);
    for (uint32_t place = 0; place < known && place < NUM_CALLERS; place++) {
        struct tls_caller *entry = &callers->entries[place];
        if (atomic_load_explicit(&entry->address, memory_order_acquire) == caller) {
            *get_descriptor = atomic_load_explicit(&entry->get_descriptor, memory_order_relaxed);
            return atomic_load_explicit(&entry->function, memory_order_relaxed);
        }
    }
    int saved_errno = begin_own_work();
    void *found = find_function(caller, name);
    *get_descriptor = find_function(caller, "SSL_get_fd");
    end_own_work(saved_errno);
    uint32_t place = found == NULL ? NUM_CALLERS : atomic_fetch_add(&callers->count, 1);
    if (place < NUM_CALLERS) {
        struct tls_caller *entry = &callers->entries[place];
        atomic_store_explicit(&entry->function, found, memory_order_relaxed);
        atomic_store_explicit(&entry->get_descriptor, *get_descriptor, memory_order_relaxed);
        atomic_store_explicit(&entry->address, caller, memory_order_release);
    }
    return found;
}

#define REAL_TLS(name)                                         \
    static struct tls_callers callers;                         \
    void *get_descriptor = NULL;                               \
    real_##name##_type *real = (real_##name##_type *)real_for( \
        &callers, __builtin_return_address(0), #name, &get_descriptor)

static void end_write(void *connection, void *get_descriptor, const void *buffer, int64_t written,
                      int64_t start)
{
    int saved_errno = begin_own_work();
    int descriptor =
        get_descriptor == NULL ? -1 : ((descriptor_getter *)get_descriptor)(connection);
    struct iovec part = {(void *)(uintptr_t)buffer, (size_t)written};
    exchange_sent(tls_key(connection), true, descriptor, (struct transfer){&part, 1, written},
                  start);
    end_own_work(saved_errno);
}

static void end_read(void *connection, void *buffer, int64_t got)
{
    int saved_errno = begin_own_work();
    struct iovec part = {buffer, (size_t)got};
    exchange_decrypted(tls_key(connection), (struct transfer){&part, 1, got});
    end_own_work(saved_errno);
}

int hook_SSL_write(void *connection, const void *buffer, int size)
{
    REAL_TLS(SSL_write);
    if (real == NULL)
        return -1;
    if (!is_recording())
        return real(connection, buffer, size);
    int64_t start = clock_now();
    int written = real(connection, buffer, size);
    if (written > 0)
        end_write(connection, get_descriptor, buffer, written, start);
    return written;
}

int hook_SSL_write_ex(void *connection, const void *buffer, size_t size, size_t *written)
{
    REAL_TLS(SSL_write_ex);
    if (real == NULL)
        return 0;
    if (!is_recording())
        return real(connection, buffer, size, written);
    int64_t start = clock_now();
    int is_done = real(connection, buffer, size, written);
    if (is_done == 1 && *written > 0)
        end_write(connection, get_descriptor, buffer, (int64_t)*written, start);
    return is_done;
}

int hook_SSL_read(void *connection, void *buffer, int size)
{
    REAL_TLS(SSL_read);
    if (real == NULL)
        return -1;
    int got = real(connection, buffer, size);
    if (got > 0 && is_recording_already())
        end_read(connection, buffer, got);
    return got;
}

int hook_SSL_read_ex(void *connection, void *buffer, size_t size, size_t *got)
{
    REAL_TLS(SSL_read_ex);
    if (real == NULL)
        return 0;
    int is_done = real(connection, buffer, size, got);
    if (is_done == 1 && *got > 0 && is_recording_already())
        end_read(connection, buffer, (int64_t)*got);
    return is_done;
}

/* What it was for may have its address next. */
void hook_SSL_free(void *connection)
{
    REAL_TLS(SSL_free);
    (void)get_descriptor;
    if (connection != NULL && is_recording_already()) {
        int saved_errno = begin_own_work();
        exchange_closed(tls_key(connection));
        end_own_work(saved_errno);
    }
    if (real != NULL)
        real(connection);
}
