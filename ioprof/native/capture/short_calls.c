#include "short_calls.h"

__attribute__((cold)) void emit_slow_call(int64_t start, int64_t end, int32_t path,
                                          const char *name, size_t length)
{
    emit_event(&(struct event){start, end, -1, -1, path, text_number(name, length), KIND_OPEN,
                               SOURCE_NONE});
}
