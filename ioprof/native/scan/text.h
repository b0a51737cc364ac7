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
static inline const char *find_text(const char *at, const char *end, const char *needle, size_t size) {
#ifdef __SSE2__
  const __m128i first = _mm_set1_epi8(needle[0]), second = _mm_set1_epi8(needle[1]), third = _mm_set1_epi8(needle[2]);
  for (; end - at >= 18; at += 16) {
    __m128i found = _mm_and_si128(_mm_cmpeq_epi8(first, _mm_loadu_si128((const __m128i *)at)),
                                  _mm_cmpeq_epi8(third, _mm_loadu_si128((const __m128i *)(at + 2))));
    found = _mm_and_si128(found, _mm_cmpeq_epi8(second, _mm_loadu_si128((const __m128i *)(at + 1))));
    for (unsigned places = (unsigned)_mm_movemask_epi8(found); places; places &= places - 1) {
      const char *place = at + __builtin_ctz(places);
      if ((size_t)(end - place) >= size && memcmp(place, needle, size) == 0) return place;
    }
  }
#endif
  for (; (size_t)(end - at) >= size; at++) {
    at = memchr(at, needle[0], (size_t)(end - at) - size + 1);
    if (!at) return NULL;
    if (memcmp(at, needle, size) == 0) return at;
  }
  return NULL;
}

/* After the text, if it is here; else NULL. */
static inline const char *after_text(const char *at, const char *end, const char *text, size_t size) {
  return (size_t)(end - at) >= size && memcmp(at, text, size) == 0 ? at + size : NULL;
}

#define AFTER(at, end, text) after_text(at, end, "" text, sizeof(text) - 1)

static inline bool is_ascii(const char *at, const char *end) {
  uint64_t all = 0, word;
  for (; end - at >= 8; at += 8) {
    memcpy(&word, at, 8);
    all |= word;
  }
  for (; at < end; at++) all |= (uint64_t)(unsigned char)*at;
  return !(all & 0x8080808080808080ull);
}

/* After white space of ASCII. */
static inline const char *after_space(const char *at, const char *end) {
  while (at < end && (*at == ' ' || (*at >= '\t' && *at <= '\r'))) at++;
  return at;
}

/* After 1 to MOST_DIGITS digits, with their value; NULL: there are none, or more. */
static inline const char *after_digits(const char *at, const char *end, int64_t *value) {
  const char *start = at;
  int64_t number = 0;
  for (; at < end && *at >= '0' && *at <= '9'; at++) {
    if (at - start == MOST_DIGITS) return NULL;
    number = number * 10 + (*at - '0');
  }
  *value = number;
  return at == start ? NULL : at;
}

#endif
