#include "table.h"

#include <stdlib.h>

#define FEWEST_SLOTS 256u
#define FNV_PRIME UINT64_C(1099511628211)

static size_t slot_of(const struct table *table, uint64_t key)
{
    size_t slot = (size_t)((key * UINT64_C(0x9E3779B97F4A7C15)) >> 32) & (table->slots - 1);
    while (table->keys[slot] && table->keys[slot] != key)
        slot = (slot + 1) & (table->slots - 1);
    return slot;
}

uint32_t find(const struct table *table, uint64_t key)
{
    if (!table->slots)
        return NOT_FOUND;
    size_t slot = slot_of(table, key);
    return table->keys[slot] ? table->values[slot] : NOT_FOUND;
}

static bool grow(struct table *table)
{
    struct table larger = {.slots = table->slots ? 2 * table->slots : FEWEST_SLOTS,
                           .count = table->count};
    larger.keys = calloc(larger.slots, sizeof *larger.keys);
    larger.values = calloc(larger.slots, sizeof *larger.values);
    if (!larger.keys || !larger.values) {
        free_table(&larger);
        return false;
    }
    for (size_t i = 0; i < table->slots; i++) {
        if (table->keys[i]) {
            size_t slot = slot_of(&larger, table->keys[i]);
            larger.keys[slot] = table->keys[i];
            larger.values[slot] = table->values[i];
        }
    }
    free_table(table);
    *table = larger;
    return true;
}

bool insert(struct table *table, uint64_t key, uint32_t value)
{
    if (table->count * 2 >= table->slots && !grow(table))
        return false;
    size_t slot = slot_of(table, key);
    table->count += !table->keys[slot];
    table->keys[slot] = key;
    table->values[slot] = value;
    return true;
}

void free_table(struct table *table)
{
    free(table->keys);
    free(table->values);
    *table = (struct table){0};
}

uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t length)
{
    const unsigned char *byte = bytes;
    for (size_t i = 0; i < length; i++)
        hash = (hash ^ byte[i]) * FNV_PRIME;
    return hash ? hash : 1;
}
