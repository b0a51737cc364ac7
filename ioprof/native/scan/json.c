#include "json.h"

const char *after_any(const char *at, const char *end, int depth)
{
    Value ignored;
    if (at == end || depth > DEEPEST)
        return NULL;
    if (*at == 't')
        return AFTER(at, end, "true");
    if (*at == 'f')
        return AFTER(at, end, "false");
    if (*at != '{' && *at != '[')
        return after_scalar(at, end, &ignored);
    bool is_object = *at == '{';
    char closing = is_object ? '}' : ']';
    at = after_blank(at + 1, end);
    if (at < end && *at == closing)
        return at + 1;
    for (;;) {
        if (is_object) {
            if (at == end || *at != '"' || !(at = plain_end(at + 1, end)))
                return NULL;
            if (!(at = after_sign(at + 1, end, ':')))
                return NULL;
        }
        if (!(at = after_any(at, end, depth + 1)))
            return NULL;
        at = after_blank(at, end);
        if (at < end && *at == closing)
            return at + 1;
        if (!(at = after_sign(at, end, ',')))
            return NULL;
    }
}
