#include "tables.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
    FIRST_ROWS = 1024,
    FIRST_ROWS_OF_COLUMNS = 16384,
    FIRST_SLOTS = 256,
    HUGE_PAGE_BYTES = 2 << 20
};

/* Doubles an array when it is full; false: no memory. */
static bool grow(void **array, size_t *capacity, size_t item_bytes, size_t least)
{
    size_t wanted = *capacity ? *capacity : least;
    while (wanted < least) {
        if (wanted > SIZE_MAX / 2)
            return false;
        wanted *= 2;
    }
    if (wanted == *capacity) {
        if (wanted > SIZE_MAX / 2)
            return false;
        wanted *= 2;
    }
    if (wanted > SIZE_MAX / item_bytes)
        return false;
    void *larger = realloc(*array, wanted * item_bytes);
    if (!larger)
        return false;
    *array = larger;
    *capacity = wanted;
    return true;
}

int64_t *next_row(Table *table)
{
    if (table->rows == table->capacity && !grow((void **)&table->cells, &table->capacity,
                                                table->columns * sizeof(int64_t), FIRST_ROWS)) {
        return NULL;
    }
    return table->cells + table->rows * table->columns;
}

void free_table(Table *table)
{
    free(table->cells);
    table->cells = NULL;
    table->rows = table->capacity = 0;
}

/* Memory for columns. A page of 4 KiB costs a fault when it is first written, 1.4 us on a virtual
   machine: as much as scanning 100 reads of Darshan. */
static int64_t *new_cells(size_t bytes)
{
#ifdef MADV_HUGEPAGE
    if (bytes >= HUGE_PAGE_BYTES) {
        void *cells = aligned_alloc(HUGE_PAGE_BYTES, (bytes + HUGE_PAGE_BYTES - 1) /
                                                         HUGE_PAGE_BYTES * HUGE_PAGE_BYTES);
        if (cells)
            madvise(cells, bytes, MADV_HUGEPAGE); /* where it is not possible, pages are small */
        return cells;
    }
#endif
    return malloc(bytes);
}

bool reserve_rows(Columns *columns, size_t more)
{
    if (more <= columns->capacity - columns->rows)
        return true;
    size_t row_bytes = columns->columns * sizeof(int64_t), most = SIZE_MAX / 4 / row_bytes;
    if (more > most - columns->rows)
        return false;
    size_t capacity = columns->capacity ? columns->capacity : FIRST_ROWS_OF_COLUMNS;
    while (capacity < columns->rows + more)
        capacity *= 2;
    int64_t *cells = new_cells(capacity * row_bytes);
    if (!cells)
        return false;
    for (size_t column = 0; columns->rows && column < columns->columns; column++) {
        memcpy(cells + column * capacity, column_of(columns, column),
               columns->rows * sizeof(int64_t));
    }
    free(columns->cells);
    columns->cells = cells;
    columns->capacity = capacity;
    return true;
}

void free_columns(Columns *columns)
{
    free(columns->cells);
    columns->cells = NULL;
    columns->rows = columns->capacity = 0;
}

/* A product of 128 bits, folded: the step of wyhash. */
static uint64_t mix(uint64_t a, uint64_t b)
{
#ifdef __SIZEOF_INT128__
    unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
#else
    uint64_t high = a * (b | 1);
    return high ^ high >> 29 ^ b;
#endif
}

/* Neither factor may be known without the seed: a text that makes one of them zero gives zero
 * whatever the other is. */
static uint64_t hash_of(const char *text, size_t size, uint64_t seed)
{
    const uint64_t secret = mix(seed ^ 0xA0761D6478BD642Full, 0xE7037ED1A0B428DBull);
    uint64_t hash = seed ^ size, words[2];
    for (; size >= 16; text += 16, size -= 16) {
        memcpy(words, text, 16);
        hash = mix(words[0] ^ secret, words[1] ^ hash ^ seed);
    }
    load_rest(text, size, words);
    hash = mix(words[0] ^ secret, words[1] ^ hash ^ seed);
    return mix(hash ^ 0x8EBC6AF09C88C6E3ull, seed | 1);
}

const char *string_at(const Strings *strings, size_t number, size_t *size)
{
    size_t start = number ? strings->ends[number - 1] : 0;
    *size = strings->ends[number] - start;
    return strings->text + start;
}

/* The slot of a string: its own, or the free one in which it belongs. */
static size_t slot_of(const Strings *strings, const char *text, size_t size)
{
    size_t mask = strings->num_slots - 1, slot = (size_t)hash_of(text, size, strings->seed) & mask;
    for (; strings->slots[slot]; slot = (slot + 1) & mask) {
        size_t stored;
        const char *found = string_at(strings, strings->slots[slot] - 1, &stored);
        if (stored == size && is_same(found, text, size))
            break;
    }
    return slot;
}

static bool enlarge_slots(Strings *strings)
{
    size_t wanted = strings->num_slots ? strings->num_slots * 2 : FIRST_SLOTS;
    uint32_t *slots = calloc(wanted, sizeof(uint32_t));
    if (!slots)
        return false;
    free(strings->slots);
    strings->slots = slots;
    strings->num_slots = wanted;
    for (size_t number = 0; number < strings->count; number++) {
        size_t size;
        const char *text = string_at(strings, number, &size);
        slots[slot_of(strings, text, size)] = (uint32_t)number + 1;
    }
    return true;
}

int64_t number_of(Strings *strings, const char *text, size_t size)
{
    if (strings->recent < strings->count) {
        size_t stored;
        const char *found = string_at(strings, strings->recent, &stored);
        if (stored == size && is_same(found, text, size))
            return (int64_t)strings->recent;
    }
    if (strings->count >= strings->num_slots / 2 && !enlarge_slots(strings))
        return -1;
    size_t slot = slot_of(strings, text, size);
    if (strings->slots[slot])
        return (int64_t)(strings->recent = strings->slots[slot] - 1);
    if (strings->count >= UINT32_MAX - 1)
        return -1;
    if (size > strings->capacity - strings->used || !strings->text) {
        if (size > SIZE_MAX - strings->used ||
            !grow((void **)&strings->text, &strings->capacity, 1, strings->used + size + 4096)) {
            return -1;
        }
    }
    if (strings->count == strings->ends_capacity &&
        !grow((void **)&strings->ends, &strings->ends_capacity, sizeof(size_t), FIRST_ROWS)) {
        return -1;
    }
    memcpy(strings->text + strings->used, text, size);
    strings->used += size;
    strings->ends[strings->count] = strings->used;
    strings->slots[slot] = (uint32_t)++strings->count;
    return (int64_t)(strings->recent = strings->count - 1);
}

void free_strings(Strings *strings)
{
    free(strings->text);
    free(strings->ends);
    free(strings->slots);
    strings->text = NULL;
    strings->ends = NULL;
    strings->slots = NULL;
    strings->count = strings->num_slots = strings->used = strings->capacity =
        strings->ends_capacity = 0;
}
