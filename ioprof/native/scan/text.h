/* Finding and reading parts of a text that may be damaged: nothing is read outside of [at, end). */

#ifndef IOPROF_SCAN_TEXT_H
#define IOPROF_SCAN_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#define NONE INT64_MIN /* no value, in columns of numbers */

enum { MOST_DIGITS = 18 }; /* of a number that is read here: it fits into 64 bits */

/* The first place of `needle`, which has at least three bytes; NULL: nowhere. */
static inline const char *find_text(const char *at, const char *end, const char *needle,
                                    size_t size)
{
#ifdef __SSE2__
    const __m128i first = _mm_set1_epi8(needle[0]), second = _mm_set1_epi8(needle[1]),
                  third = _mm_set1_epi8(needle[2]);
    for (; end - at >= 18; at += 16) {
        __m128i found =
            _mm_and_si128(_mm_cmpeq_epi8(first, _mm_loadu_si128((const __m128i *)at)),
                          _mm_cmpeq_epi8(third, _mm_loadu_si128((const __m128i *)(at + 2))));
        found = _mm_and_si128(found,
                              _mm_cmpeq_epi8(second, _mm_loadu_si128((const __m128i *)(at + 1))));
        for (unsigned places = (unsigned)_mm_movemask_epi8(found); places; places &= places - 1) {
            const char *place = at + __builtin_ctz(places);
            if ((size_t)(end - place) >= size && memcmp(place, needle, size) == 0)
                return place;
        }
    }
#endif
    for (; (size_t)(end - at) >= size; at++) {
        at = memchr(at, needle[0], (size_t)(end - at) - size + 1);
        if (!at)
            return NULL;
        if (memcmp(at, needle, size) == 0)
            return at;
    }
    return NULL;
}

/* After the text, if it is here; else NULL. */
static inline const char *after_text(const char *at, const char *end, const char *text, size_t size)
{
    return (size_t)(end - at) >= size && memcmp(at, text, size) == 0 ? at + size : NULL;
}

#define AFTER(at, end, text) after_text(at, end, "" text, sizeof(text) - 1)

static inline bool is_ascii(const char *at, const char *end)
{
    uint64_t all = 0, word;
    for (; end - at >= 8; at += 8) {
        memcpy(&word, at, 8);
        all |= word;
    }
    for (; at < end; at++)
        all |= (uint64_t)(unsigned char)*at;
    return !(all & 0x8080808080808080ull);
}

/* After white space of ASCII. */
static inline const char *after_space(const char *at, const char *end)
{
    while (at < end && (*at == ' ' || (*at >= '\t' && *at <= '\r')))
        at++;
    return at;
}

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define HAS_DIGIT_WORDS

/* How many of eight bytes, the lowest first, are digits before one that is none. */
static inline unsigned count_digits(uint64_t bytes)
{
    uint64_t values = bytes ^ 0x3030303030303030ull;
    uint64_t others = (((values & 0x7F7F7F7F7F7F7F7Full) + 0x7676767676767676ull) | values) &
                      0x8080808080808080ull;
    return others ? (unsigned)__builtin_ctzll(others) / 8 : 8;
}

/* The value of eight digits, of which zero bytes are zeros. */
static inline int64_t eight_digits(uint64_t bytes)
{
    bytes = (bytes & 0x0F0F0F0F0F0F0F0Full) * 2561 >>
            8; /* of each two bytes: ten times the lower one, and the other */
    bytes = (bytes & 0x00FF00FF00FF00FFull) * 6553601 >> 16;
    return (int64_t)((bytes & 0x0000FFFF0000FFFFull) * 42949672960001ull >> 32);
}
#endif

/* After any number of digits. */
static inline const char *after_all_digits(const char *at, const char *end)
{
#ifdef HAS_DIGIT_WORDS
    for (uint64_t bytes; end - at >= 8; at += 8) {
        memcpy(&bytes, at, 8);
        unsigned digits = count_digits(bytes);
        if (digits < 8)
            return at + digits;
    }
#endif
    while (at < end && *at >= '0' && *at <= '9')
        at++;
    return at;
}

/* After 1 to MOST_DIGITS digits, with their value; NULL: there are none, or more. */
static inline const char *after_digits(const char *at, const char *end, int64_t *value)
{
    const char *start = at;
    int64_t number = 0;
#ifdef HAS_DIGIT_WORDS
    static const int64_t powers[] = {1, 10, 100, 1000, 10000, 100000, 1000000, 10000000, 100000000};
    for (uint64_t bytes; end - at >= 8;) {
        memcpy(&bytes, at, 8);
        unsigned digits = count_digits(bytes);
        if (at - start + digits > MOST_DIGITS)
            return NULL;
        if (digits)
            number = number * powers[digits] + eight_digits(bytes << (64 - 8 * digits));
        at += digits;
        if (digits < 8) {
            *value = number;
            return at == start ? NULL : at;
        }
    }
#endif
    for (; at < end && *at >= '0' && *at <= '9'; at++) {
        if (at - start == MOST_DIGITS)
            return NULL;
        number = number * 10 + (*at - '0');
    }
    *value = number;
    return at == start ? NULL : at;
}

#endif
