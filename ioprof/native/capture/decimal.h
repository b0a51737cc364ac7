/* Decimal numbers in text, without stdio, which may allocate. */
#ifndef IOPROF_DECIMAL_H
#define IOPROF_DECIMAL_H

#include <stdint.h>

#pragma GCC visibility push(hidden)

/* Writes the number at `place`; returns the end of it, where no zero is written. */
char *append_decimal(char *place, uint64_t number);

/* The next number in a text, whatever precedes it; `*text` moves to its end. 0: there is none. */
uint64_t next_decimal(const char **text, const char *end);

#pragma GCC visibility pop

#endif
