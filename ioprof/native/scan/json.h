/* Values in the strict grammar of JSON, of forms that need no decoding: ASCII without escapes,
 * numbers without exponents. */

#ifndef IOPROF_SCAN_JSON_H
#define IOPROF_SCAN_JSON_H

#include "text.h"

typedef enum { NULL_VALUE = 1, WHOLE = 2, DECIMAL = 4, TEXT = 8 } Kind;

typedef struct {
    const char *text; /* of a text without its quotes */
    size_t size;
    Kind kind;
} Value;

enum {
    DEEPEST = 4, /* of values that nothing is needed of */
    MOST_IN_NUMBER =
        32, /* digits before and after its point: Python refuses some thousands of them */
};

static inline const char *after_blank(const char *at, const char *end)
{
    while (at < end && (*at == ' ' || *at == '\t'))
        at++;
    return at;
}

/* After a character with blanks around it; NULL: another one. */
static inline const char *after_sign(const char *at, const char *end, char sign)
{
    if (at < end && *at != sign)
        at = after_blank(at, end);
    if (at == end || *at != sign)
        return NULL;
    at++;
    return at < end && (*at == ' ' || *at == '\t') ? after_blank(at, end) : at;
}

/* The closing quote of a string of ASCII without escapes and control characters; NULL: another
 * string. */
static inline const char *plain_end(const char *at, const char *end)
{
#ifdef __SSE2__
    const __m128i quote = _mm_set1_epi8('"'), backslash = _mm_set1_epi8('\\'),
                  space = _mm_set1_epi8(' ');
    for (; end - at >= 16; at += 16) {
        __m128i bytes = _mm_loadu_si128((const __m128i *)at);
        __m128i stop = _mm_or_si128(_mm_cmpeq_epi8(bytes, quote), _mm_cmpeq_epi8(bytes, backslash));
        stop = _mm_or_si128(stop, _mm_cmplt_epi8(bytes, space)); /* signed: 0x80 and more too */
        unsigned places = (unsigned)_mm_movemask_epi8(stop);
        if (places) {
            at += __builtin_ctz(places);
            return *at == '"' ? at : NULL;
        }
    }
#endif
    for (; at < end; at++) {
        if (*at == '"')
            return at;
        if (*at == '\\' || (unsigned char)*at < ' ' || (unsigned char)*at >= 0x80)
            return NULL;
    }
    return NULL;
}

/* After a number without an exponent. -0 is left, since an integer has no such form. */
static inline const char *after_number(const char *at, const char *end, Value *value)
{
    const char *start = at;
    if (at < end && *at == '-')
        at++;
    const char *digits = at;
    at = after_all_digits(at, end);
    if (at == digits || at - digits > MOST_IN_NUMBER ||
        (*digits == '0' && (at - digits > 1 || digits != start)))
        return NULL;
    value->kind = WHOLE;
    if (at < end && *at == '.') {
        const char *decimals = ++at;
        at = after_all_digits(at, end);
        if (at == decimals || at - decimals > MOST_IN_NUMBER)
            return NULL;
        value->kind = DECIMAL;
    }
    if (at == end || *at == 'e' || *at == 'E')
        return NULL;
    value->text = start;
    value->size = (size_t)(at - start);
    return at;
}

/* After a text, number or null. */
static inline const char *after_scalar(const char *at, const char *end, Value *value)
{
    if (at == end)
        return NULL;
    if (*at == '"') {
        value->text = at + 1;
        if (!(at = plain_end(at + 1, end)))
            return NULL;
        value->size = (size_t)(at - value->text);
        value->kind = TEXT;
        return at + 1;
    }
    if (*at == 'n') {
        value->kind = NULL_VALUE;
        value->size = 0;
        return AFTER(at, end, "null");
    }
    return after_number(at, end, value);
}

/* After any value, which is not too deep. */
const char *after_any(const char *at, const char *end, int depth);

#endif
