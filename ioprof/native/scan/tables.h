/* What a scan fills: rows or columns of 64-bit numbers, and strings that are stored once. */

#ifndef IOPROF_SCAN_TABLES_H
#define IOPROF_SCAN_TABLES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    int64_t *cells;
    size_t columns, rows, capacity;
} Table;

/* Space for one more row; NULL: no memory. The row counts when `rows` is increased. */
int64_t *next_row(Table *table);
void free_table(Table *table);

/* A table column by column, which Python takes without a copy. */
typedef struct {
    int64_t *cells;
    size_t columns, rows, capacity; /* a column has `capacity` cells */
} Columns;

static inline int64_t *column_of(const Columns *columns, size_t column)
{
    return columns->cells + column * columns->capacity;
}

/* Makes space for more rows, which count when `rows` is increased; false: no memory. */
bool reserve_rows(Columns *columns, size_t more);
void free_columns(Columns *columns);

/* Up to 15 bytes as two words, which differ for different texts of the same size. */
static inline void load_rest(const char *text, size_t size, uint64_t words[2])
{
    words[0] = words[1] = 0;
    if (size >= 8) {
        memcpy(&words[0], text, 8);
        memcpy(&words[1], text + size - 8, 8);
    } else if (size >= 4) {
        memcpy(&words[0], text, 4);
        memcpy(&words[1], text + size - 4, 4);
    } else if (size) {
        words[0] = (uint64_t)(unsigned char)text[0] << 16 |
                   (uint64_t)(unsigned char)text[size / 2] << 8 | (unsigned char)text[size - 1];
    }
}

/* Without a call of memcmp, which takes longer than the comparison of a short name. */
static inline bool is_same(const char *text, const char *other, size_t size)
{
    uint64_t words[2], others[2];
    for (; size >= 16; text += 16, other += 16, size -= 16) {
        memcpy(words, text, 16);
        memcpy(others, other, 16);
        if (words[0] != others[0] || words[1] != others[1])
            return false;
    }
    load_rest(text, size, words);
    load_rest(other, size, others);
    return words[0] == others[0] && words[1] == others[1];
}

typedef struct {
    char *text;
    size_t used, capacity;
    size_t *ends; /* of each string in `text` */
    size_t count, ends_capacity;
    uint32_t *slots; /* a hash table: number of a string plus 1 */
    size_t num_slots;
    size_t recent; /* the number that was given last: most strings come several times in a row */
    uint64_t seed; /* so that a file cannot choose strings that collide */
} Strings;

/* The number of a string, which is stored if it is new; -1: no memory. */
int64_t number_of(Strings *strings, const char *text, size_t size);
const char *string_at(const Strings *strings, size_t number, size_t *size);
void free_strings(Strings *strings);

#endif
