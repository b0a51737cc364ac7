/* A hash table from 64-bit keys to numbers, which only grows. */

#ifndef IOPROF_STACKS_TABLE_H
#define IOPROF_STACKS_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NOT_FOUND UINT32_MAX

struct table {
    uint64_t *keys; /* 0: free */
    uint32_t *values;
    size_t slots; /* a power of two, or 0 */
    size_t count;
};

/* The value of a key, or NOT_FOUND. */
uint32_t find(const struct table *table, uint64_t key);

/* Sets the value of a key; false where there is no memory. */
bool insert(struct table *table, uint64_t key, uint32_t value);

void free_table(struct table *table);

/* FNV-1a of some bytes, continued from `hash`; never 0. */
uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t length);

#define HASH_START UINT64_C(14695981039346656037)

#endif
