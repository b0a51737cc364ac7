/* What a scan fills: rows of 64-bit numbers, and strings that are stored once. */

#ifndef IOPROF_SCAN_TABLES_H
#define IOPROF_SCAN_TABLES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
  int64_t *cells;
  size_t columns, rows, capacity;
} Table;

/* Space for one more row; NULL: no memory. The row counts when `rows` is increased. */
int64_t *next_row(Table *table);
void free_table(Table *table);

typedef struct {
  char *text;
  size_t used, capacity;
  size_t *ends; /* of each string in `text` */
  size_t count, ends_capacity;
  uint32_t *slots; /* a hash table: number of a string plus 1 */
  size_t num_slots;
  uint64_t seed; /* so that a file cannot choose strings that collide */
} Strings;

/* The number of a string, which is stored if it is new; -1: no memory. */
int64_t number_of(Strings *strings, const char *text, size_t size);
const char *string_at(const Strings *strings, size_t number, size_t *size);
void free_strings(Strings *strings);

#endif
