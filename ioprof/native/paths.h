/* Paths and names as numbers of strings in the capture file, each written once mostly, whoever asks. */
#ifndef IOPROF_PATHS_H
#define IOPROF_PATHS_H

#include "live.h"

#include <limits.h>

#define KNOWN_PATHS (1 << 17) /* 2 MiB at most, touched as it fills; a path that was displaced is written again */
#define PATH_ROOM (2 * PATH_MAX)

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

/* In the manner of wyhash: eight bytes a step, 64 good bits. */
static inline uint64_t text_hash(const char *text, size_t length)
{
    uint64_t hash = 0x9e3779b97f4a7c15 ^ length, word;
    for (; length >= 8; text += 8, length -= 8) {
        memcpy(&word, text, 8);
        hash = mixed(hash ^ word, 0xa0761d6478bd642f);
    }
    word = 0;
    for (size_t place = 0; place < length; place++)
        word |= (uint64_t)(unsigned char)text[place] << (8 * place);
    return mixed(hash ^ word, 0xe7037ed1a0b428db);
}

/* The string's number, -1 where there is no room for it. Under hands_off. */
static inline int32_t text_number(const char *text, size_t length)
{
    uint64_t generation = atomic_load_explicit(&ring.generation, memory_order_relaxed);
    uint64_t hash = text_hash(text, length);
    struct known_path *known = &known_paths[hash % KNOWN_PATHS];
    uint64_t value = atomic_load_explicit(&known->value, memory_order_relaxed);
    uint64_t check = atomic_load_explicit(&known->check, memory_order_relaxed);
    if ((check ^ value) == hash && value >> 32 == generation)
        return (int32_t)((uint32_t)value - 1);
    int32_t number = ring_string(&ring, &writer, text, length);
    if (number >= 0) {
        value = generation << 32 | (uint32_t)(number + 1);
        atomic_store_explicit(&known->value, value, memory_order_relaxed);
        atomic_store_explicit(&known->check, hash ^ value, memory_order_relaxed);
    }
    return number;
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
    while (length > 2 && path[0] == '.' && path[1] == '/') {
        path += 2;
        length -= 2;
    }
    size_t above = folder_path(descriptor, absolute);
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
