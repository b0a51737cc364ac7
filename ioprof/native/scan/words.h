/* Lists of words to compare with. */

#ifndef IOPROF_SCAN_WORDS_H
#define IOPROF_SCAN_WORDS_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

typedef struct {
    const char *text; /* NULL: the end of the list */
    size_t size;
} Word;

static inline bool is_one_of(const Word *words, const char *text, size_t size)
{
    for (; words->text; words++) {
        if (words->size == size && memcmp(words->text, text, size) == 0)
            return true;
    }
    return false;
}

#endif
