/* Paths and names as numbers of strings in the capture file, each written once mostly, whoever asks. */
#ifndef IOPROF_PATHS_H
#define IOPROF_PATHS_H

#include "live.h"

#include <limits.h>

#define KNOWN_PATHS (1 << 17) /* 2 MiB at most, touched as it fills; a path that was displaced is written again */
#define PATH_ROOM (2 * PATH_MAX)
#define PAGE_BYTES 4096 /* the smallest page there is */

/* A path's hash and its string: two words without a lock. A reader that finds one of this path and one of another cannot be misled,
 * because `check` is the hash xored with the value (Hyatt's lockless hashing). */
struct known_path {
    ioprof_counter check, value; /* value: generation << 32 | string + 1 */
};

static struct known_path known_paths[KNOWN_PATHS];

static inline uint64_t mixed(uint64_t a, uint64_t b)
{
    unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static inline uint64_t eight_bytes(const char *text)
{
    uint64_t word;
    memcpy(&word, text, 8);
    return word;
}

static inline uint64_t few_bytes(const char *text, size_t length)
{
    uint64_t word = 0;
    for (size_t place = 0; place < length; place++)
        word |= (uint64_t)(unsigned char)text[place] << (8 * place);
    return word;
}

/* In the manner of wyhash: sixteen bytes a step in two lanes that do not wait for each other, the last ones of which may have been
 * taken before; 64 good bits. */
static inline uint64_t text_hash(const char *text, size_t length)
{
    const char *last = text + length - 16;
    uint64_t first = 0x9e3779b97f4a7c15 ^ length, second = 0x8ebc6af09c88c6e3;
    if (length < 8)
        return mixed(first ^ few_bytes(text, length), 0xe7037ed1a0b428db);
    if (length < 16)
        return mixed(first ^ eight_bytes(text), 0xe7037ed1a0b428db ^ eight_bytes(text + length - 8));
    for (; text < last; text += 16) {
        first = mixed(first ^ eight_bytes(text), 0xa0761d6478bd642f);
        second = mixed(second ^ eight_bytes(text + 8), 0xe7037ed1a0b428db);
    }
    first = mixed(first ^ eight_bytes(last), 0xa0761d6478bd642f);
    second = mixed(second ^ eight_bytes(last + 8), 0xe7037ed1a0b428db);
    return mixed(first ^ 0x589965cc75374cc3, second ^ length);
}

/* What a text is looked up by. */
struct key {
    const char *text; /* NULL: it was not looked up */
    size_t length;
    uint64_t hash;
};

#define NO_KEY ((struct key){NULL, 0, 0})

/* Of as many paths as a dataset has, the table's entry is not in the processor's cache: it is sent for. */
static inline struct key key_of(const char *text, size_t length)
{
    struct key key = {text, length, text_hash(text, length)};
    __builtin_prefetch(&known_paths[key.hash % KNOWN_PATHS]);
    return key;
}

/* The string's number, -1 where there is no room for it. Under hands_off. */
static inline int32_t key_number(const struct key *key)
{
    uint64_t generation = atomic_load_explicit(&ring.generation, memory_order_relaxed);
    struct known_path *known = &known_paths[key->hash % KNOWN_PATHS];
    uint64_t value = atomic_load_explicit(&known->value, memory_order_relaxed);
    uint64_t check = atomic_load_explicit(&known->check, memory_order_relaxed);
    if ((check ^ value) == key->hash && value >> 32 == generation)
        return (int32_t)((uint32_t)value - 1);
    int32_t number = ring_string(&ring, &writer, key->text, key->length);
    if (number >= 0) {
        value = generation << 32 | (uint32_t)(number + 1);
        atomic_store_explicit(&known->value, value, memory_order_relaxed);
        atomic_store_explicit(&known->check, key->hash ^ value, memory_order_relaxed);
    }
    return number;
}

static inline int32_t text_number(const char *text, size_t length)
{
    struct key key = key_of(text, length);
    return key_number(&key);
}

#define NAME(text) text_number(text, sizeof text - 1)

/* ---------------------------------------------------------------------------------------- the working directory */

/* Kept, because asking for it costs as much as a read. The version is odd while somebody writes; chdir makes it unknown. */
static struct {
    _Atomic uint32_t version;
    _Atomic uint32_t length; /* 0: unknown */
    _Atomic char text[PATH_MAX];
} folder;

static void forget_folder(void)
{
    atomic_store(&folder.length, 0);
    atomic_fetch_add(&folder.version, 2);
}

static void keep_folder(const char *text, size_t length, uint32_t version)
{
    if (version % 2 != 0 || !atomic_compare_exchange_strong(&folder.version, &version, version + 1))
        return;
    for (size_t place = 0; place < length; place++)
        atomic_store_explicit(&folder.text[place], text[place], memory_order_relaxed);
    atomic_store(&folder.length, (uint32_t)length);
    atomic_fetch_add(&folder.version, 1);
}

/* Its length, the text in `into`, which has PATH_MAX bytes; 0: it has none, or a longer one. */
static size_t working_folder(char *into)
{
    uint32_t version = atomic_load(&folder.version);
    size_t length = atomic_load(&folder.length);
    for (size_t place = 0; place < length; place++)
        into[place] = atomic_load_explicit(&folder.text[place], memory_order_acquire); /* before the version is looked at again */
    if (length > 0 && version % 2 == 0 && atomic_load(&folder.version) == version)
        return length;
    long kept = real_call(SYS_getcwd, (long)into, PATH_MAX, 0, 0, 0, 0); /* with its final zero */
    if (kept <= 1 || into[0] != '/')
        return 0;
    keep_folder(into, (size_t)kept - 1, version);
    return (size_t)kept - 1;
}

/* ---------------------------------------------------------------------------------------- absolute paths */

/* The path of an open descriptor, as the kernel knows it; 0: it has none. */
static size_t descriptor_path(int descriptor, char *into)
{
    char link[32] = "/proc/self/fd/";
    *put_number(link + sizeof "/proc/self/fd/" - 1, (uint64_t)descriptor) = '\0';
    ssize_t length = readlink(link, into, PATH_MAX);
    return length > 0 && into[0] == '/' ? (size_t)length : 0;
}

static size_t folder_path(int descriptor, char *into)
{
    return descriptor == AT_FDCWD ? working_folder(into) : descriptor_path(descriptor, into);
}

/* Apart, because a signal handler that opens a file by its absolute path may have a small stack. */
static __attribute__((noinline)) int32_t relative_number(int descriptor, const char *path, size_t length)
{
    char absolute[PATH_ROOM];
    int saved_errno = errno;
    while (length > 2 && path[0] == '.' && path[1] == '/') {
        path += 2;
        length -= 2;
    }
    size_t above = folder_path(descriptor, absolute);
    errno = saved_errno;
    if (above == 0)
        return -1;
    if (absolute[above - 1] != '/')
        absolute[above++] = '/';
    memcpy(absolute + above, path, length);
    return text_number(absolute, above + length);
}

/* The number of a path that was given to a call with a folder, or -1. Not normalised: what `..` leads to only the kernel knows. */
static int32_t path_number(int descriptor, const char *path)
{
    size_t length = strnlen(path, PATH_MAX);
    return path[0] == '/' ? text_number(path, length) : relative_number(descriptor, path, length);
}

/* ---------------------------------------------------------------------------------------- before the kernel has the path */

#define TEXT_PAGES 64

/* Pages in which this thread had a path that the kernel could read. */
static __thread uintptr_t text_pages[TEXT_PAGES];

static inline void trust_page(const char *path)
{
    text_pages[(uintptr_t)path / PAGE_BYTES % TEXT_PAGES] = (uintptr_t)path / PAGE_BYTES;
}

/* An absolute path is looked up before it is opened, so that the table's entry arrives while the kernel is busy: it took 0.1 µs of
 * each open. Whether the path lies at an address at all only the kernel knows, so that is done where there has been one before. */
static inline struct key look_up(const char *path)
{
    uintptr_t page = (uintptr_t)path / PAGE_BYTES;
    if (page == 0 || text_pages[page % TEXT_PAGES] != page || path[0] != '/')
        return NO_KEY;
    size_t room = PAGE_BYTES - (uintptr_t)path % PAGE_BYTES, length = strnlen(path, room);
    return length == room ? NO_KEY : key_of(path, length);
}

/* The number of a path that was opened. */
static inline int32_t opened_number(const struct key *key, int folder, const char *path)
{
    if (key->text != NULL)
        return key_number(key);
    trust_page(path);
    return path_number(folder, path);
}

static __attribute__((noinline)) int32_t descriptor_number(int descriptor)
{
    char path[PATH_MAX];
    size_t length = descriptor_path(descriptor, path);
    return length > 0 ? text_number(path, length) : -1;
}

/* The spool's own files, which the Python part of ioprof opens in the same process, are not the job's. */
static inline bool in_spool(const char *path)
{
    return path[0] == '/' && strncmp(path, spool, spool_length) == 0 && (path[spool_length] == '/' || path[spool_length] == '\0');
}

#endif
