/* Strings of the capture file: paths and names by their numbers, each written once as a rule,
 * whichever thread needs it. */
#ifndef IOPROF_STRING_TABLE_H
#define IOPROF_STRING_TABLE_H

#include "process.h"
#include "tables.h"

#include <string.h>

#define KNOWN_STRINGS                                                                             \
    (1 << 17) /* 2 MiB at most, touched as it fills; a string that was displaced is written again \
               */

/* A string's hash and its number: two words that are written without a lock. A reader that finds
 * one of this string and one of another cannot be misled, because `check` is the hash xored with
 * the value (Hyatt's lockless hashing). */
struct known_string {
    ioprof_counter check, value; /* value: generation << 32 | number + 1 */
};

/* What a string is looked up by. */
struct string_key {
    const char *text; /* NULL: no key was computed */
    size_t length;
    uint64_t hash;
};

#define NO_KEY ((struct string_key){NULL, 0, 0})

#pragma GCC visibility push(hidden)

extern table_pages known_strings;

#pragma GCC visibility pop

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

/* Modelled on wyhash: sixteen bytes a step in two independent chains of multiplications; the last
 * step may overlap the one before. */
static inline uint64_t text_hash(const char *text, size_t length)
{
    const char *last = text + length - 16;
    uint64_t first = 0x9e3779b97f4a7c15 ^ length, second = 0x8ebc6af09c88c6e3;
    if (length < 8)
        return mixed(first ^ few_bytes(text, length), 0xe7037ed1a0b428db);
    if (length < 16)
        return mixed(first ^ eight_bytes(text),
                     0xe7037ed1a0b428db ^ eight_bytes(text + length - 8));
    for (; text < last; text += 16) {
        first = mixed(first ^ eight_bytes(text), 0xa0761d6478bd642f);
        second = mixed(second ^ eight_bytes(text + 8), 0xe7037ed1a0b428db);
    }
    first = mixed(first ^ eight_bytes(last), 0xa0761d6478bd642f);
    second = mixed(second ^ eight_bytes(last + 8), 0xe7037ed1a0b428db);
    return mixed(first ^ 0x589965cc75374cc3, second ^ length);
}

/* In a table of as many strings as a dataset has files, the entry is not in the processor's cache:
 * it is prefetched. */
static inline struct string_key string_key(const char *text, size_t length)
{
    struct string_key key = {text, length, text_hash(text, length)};
    __builtin_prefetch((const struct known_string *)mapped_table(&known_strings) +
                       key.hash % KNOWN_STRINGS);
    return key;
}

/* The string's number, -1 where there is no room for it. Under the reentrancy guard. Without room
 * for the table every string is written each time. */
static inline int32_t key_number(const struct string_key *key)
{
    uint64_t generation = atomic_load_explicit(&ring.generation, memory_order_relaxed);
    struct known_string *known = mapped_table(&known_strings);
    if (__builtin_expect(known == NULL, 0)) {
        known = map_table(&known_strings, KNOWN_STRINGS * sizeof *known);
        if (known == NULL)
            return ring_string(&ring, &writer, key->text, key->length);
    }
    known += key->hash % KNOWN_STRINGS;
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
    struct string_key key = string_key(text, length);
    return key_number(&key);
}

/* The number of a string literal. */
#define NAME(text) text_number(text, sizeof text - 1)

#endif
