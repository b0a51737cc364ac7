#include "http.h"

#include <string.h>
#include <strings.h>

static const char *const methods[] = {"GET",    "HEAD",    "PUT",   "POST",
                                      "DELETE", "OPTIONS", "PATCH", "CONNECT"};

static void begin_message(struct http_message *message, bool is_request)
{
    message->phase = HTTP_START_LINE;
    message->is_request = is_request;
    message->is_bodiless = message->skips = message->has_name = message->has_length =
        message->is_chunked = false;
    message->status = 0;
    message->line_length = message->head_length = 0;
    message->left = message->body = 0;
    message->first = -1;
    message->method[0] = message->host[0] = message->target[0] = '\0';
}

void http_begin_request(struct http_message *message)
{
    begin_message(message, true);
}

void http_begin_response(struct http_message *message, bool is_bodiless)
{
    begin_message(message, false);
    message->is_bodiless = is_bodiless;
}

bool http_is_request(const char *data, size_t size)
{
    for (size_t place = 0; place < sizeof methods / sizeof *methods; place++) {
        size_t length = strlen(methods[place]);
        if (size > length && memcmp(data, methods[place], length) == 0 && data[length] == ' ')
            return true;
    }
    return false;
}

/* -------------------------------------------------------------------------------------- values */

static int digit_of(char text, int base)
{
    int value = text >= '0' && text <= '9'                 ? text - '0'
                : (text | 32) >= 'a' && (text | 32) <= 'f' ? (text | 32) - 'a' + 10
                                                           : base;
    return value < base ? value : -1;
}

/* The number that a text begins with, behind spaces; -1: none, or one that is too large. `end`:
 * behind it. */
static int64_t number_at(const char *text, int base, const char **end)
{
    int64_t value = -1;
    while (*text == ' ' || *text == '\t')
        text++;
    for (; digit_of(*text, base) >= 0; text++) {
        if (value > INT64_MAX / 32)
            return -1;
        value = (value < 0 ? 0 : value) * base + digit_of(*text, base);
    }
    *end = text;
    return value;
}

/* The first byte of `bytes=0-99` or `bytes 0-99/1000`; -1: not known, as of a suffix. */
static int64_t first_of_range(const char *text)
{
    const char *end;
    while (*text == ' ' || *text == '\t')
        text++;
    if (strncasecmp(text, "bytes", 5) != 0 || (text[5] != '=' && text[5] != ' '))
        return -1;
    return number_at(text + 6, 10, &end);
}

static bool ends_with_chunked(const char *text)
{
    size_t length = strlen(text);
    while (length > 0 && (text[length - 1] == ' ' || text[length - 1] == '\t'))
        length--;
    return length >= 7 && strncasecmp(text + length - 7, "chunked", 7) == 0;
}

static void copy_text(char *into, size_t room, const char *from, size_t length)
{
    length = length < room ? length : room - 1;
    memcpy(into, from, length);
    into[length] = '\0';
}

/* --------------------------------------------------------------------------------------- lines */

static enum http_phase end_request_line(struct http_message *message)
{
    const char *line = message->line, *space = strchr(line, ' ');
    if (!http_is_request(line, message->line_length))
        return HTTP_INVALID;
    copy_text(message->method, sizeof message->method, line, (size_t)(space - line));
    const char *target = space + 1, *end = strchr(target, ' ');
    bool is_whole = end != NULL;
    if (is_whole && strncmp(end, " HTTP/1.", 8) != 0)
        return HTTP_INVALID;
    if (!is_whole &&
        message->line_length < HTTP_LINE_BYTES - 1) /* a line that was cut has lost its version */
        return HTTP_INVALID;
    copy_text(message->target, sizeof message->target, target,
              is_whole ? (size_t)(end - target) : strlen(target));
    return HTTP_FIELDS;
}

static enum http_phase end_status_line(struct http_message *message)
{
    const char *end, *line = message->line;
    if (strncmp(line, "HTTP/1.", 7) != 0 || message->line_length < 12 || line[8] != ' ')
        return HTTP_INVALID;
    int64_t status = number_at(line + 9, 10, &end);
    if (status < 100 || status > 999)
        return HTTP_INVALID;
    message->status = (int)status;
    return HTTP_FIELDS;
}

static bool is_field(const char *line, size_t length, const char *name)
{
    return strlen(name) == length && strncasecmp(line, name, length) == 0;
}

/* Whether the value of the field whose name is complete is kept. */
static bool is_wanted(const struct http_message *message)
{
    static const char *const wanted[] = {"host", "range", "content-range", "content-length",
                                         "transfer-encoding"};
    for (size_t place = 0; place < sizeof wanted / sizeof *wanted; place++)
        if (is_field(message->line, message->line_length, wanted[place]))
            return true;
    return false;
}

static enum http_phase end_field(struct http_message *message)
{
    const char *end, *colon = strchr(message->line, ':');
    if (colon == NULL)
        return HTTP_FIELDS; /* a continued line, or none that is known */
    size_t length = (size_t)(colon - message->line);
    const char *value = colon + 1;
    if (is_field(message->line, length, "content-length")) {
        int64_t number = number_at(value, 10, &end);
        if (number < 0 || (message->has_length && number != message->left))
            return HTTP_INVALID;
        message->has_length = true;
        message->left = number;
    } else if (is_field(message->line, length, "transfer-encoding")) {
        message->is_chunked = ends_with_chunked(value);
    } else if (is_field(message->line, length, message->is_request ? "range" : "content-range")) {
        message->first = first_of_range(value);
    } else if (message->is_request && is_field(message->line, length, "host")) {
        value += strspn(value, " \t");
        const char *user = strrchr(value, '@');
        value = user == NULL ? value : user + 1;
        copy_text(message->host, sizeof message->host, value, strcspn(value, " \t"));
    }
    return HTTP_FIELDS;
}

static enum http_phase end_head(struct http_message *message)
{
    int status = message->status;
    if (!message->is_request && status >= 100 && status < 200) {
        if (status == 101)
            return HTTP_INVALID; /* another protocol follows */
        uint32_t before = message->head_length;
        http_begin_response(message,
                            message->is_bodiless); /* the final response is still to come */
        message->head_length = before;
        return HTTP_START_LINE;
    }
    if (!message->is_request && (message->is_bodiless || status == 204 || status == 304))
        return HTTP_DONE;
    if (message->is_chunked)
        return HTTP_CHUNK_SIZE;
    if (message->has_length || message->is_request)
        return message->left > 0 ? HTTP_BODY : HTTP_DONE;
    return HTTP_UNTIL_CLOSE;
}

static enum http_phase end_chunk_size(struct http_message *message)
{
    const char *end;
    int64_t size = number_at(message->line, 16, &end);
    if (size < 0 || (*end != '\0' && *end != ';' && *end != ' ' && *end != '\t'))
        return HTTP_INVALID;
    message->left = size;
    return size > 0 ? HTTP_CHUNK : HTTP_TRAILERS;
}

static enum http_phase end_line(struct http_message *message)
{
    message->line[message->line_length] = '\0';
    bool is_empty = message->line_length == 0;
    switch (message->phase) {
    case HTTP_START_LINE: /* empty lines may come before it */
        return is_empty              ? HTTP_START_LINE
               : message->is_request ? end_request_line(message)
                                     : end_status_line(message);
    case HTTP_FIELDS:
        return is_empty ? end_head(message) : end_field(message);
    case HTTP_CHUNK_SIZE:
        return end_chunk_size(message);
    case HTTP_CHUNK_END:
        return is_empty ? HTTP_CHUNK_SIZE : HTTP_INVALID;
    default:
        return is_empty ? HTTP_DONE : HTTP_TRAILERS;
    }
}

/* Whether the rest of a request's target, or of the line, is left out. */
static bool begins_to_skip(const struct http_message *message, char next)
{
    if (message->phase == HTTP_START_LINE)
        return message->is_request && (next == '?' || next == '#');
    return (message->phase == HTTP_FIELDS || message->phase == HTTP_TRAILERS) && next == ':' &&
           !message->has_name && (message->phase == HTTP_TRAILERS || !is_wanted(message));
}

static void take_byte(struct http_message *message, char next)
{
    if (++message->head_length > HTTP_HEAD_BYTES) {
        message->phase = HTTP_INVALID;
        return;
    }
    if (next == '\n') {
        enum http_phase phase = end_line(message);
        message->phase = phase;
        message->line_length = 0;
        message->skips = message->has_name = false;
        return;
    }
    if (next == '\r')
        return;
    message->skips = message->skips ? !(message->phase == HTTP_START_LINE && next == ' ')
                                    : begins_to_skip(message, next);
    message->has_name = message->has_name || next == ':';
    if (!message->skips && message->line_length < HTTP_LINE_BYTES - 1)
        message->line[message->line_length++] =
            (unsigned char)next < 32 || next == 127 ? '.' : next;
}

/* -------------------------------------------------------------------------------------- bodies */

static size_t take_body(struct http_message *message, size_t size)
{
    if (message->phase == HTTP_UNTIL_CLOSE) {
        message->body += (int64_t)size;
        return size;
    }
    size_t taken = (uint64_t)message->left < size ? (size_t)message->left : size;
    message->left -= (int64_t)taken;
    message->body += (int64_t)taken;
    if (message->left == 0) {
        message->phase = message->phase == HTTP_BODY ? HTTP_DONE : HTTP_CHUNK_END;
        message->head_length = 0; /* of the lines between chunks no more than of a head */
    }
    return taken;
}

size_t http_feed(struct http_message *message, const char *data, size_t size)
{
    size_t used = 0;
    while (used < size && message->phase < HTTP_DONE) {
        enum http_phase phase = message->phase;
        if (phase == HTTP_BODY || phase == HTTP_CHUNK || phase == HTTP_UNTIL_CLOSE)
            used += take_body(message, size - used);
        else
            take_byte(message, data[used++]);
    }
    return used;
}

/* A target is a path; for a proxy a whole URL, which may have credentials, or after CONNECT a host
 * and port; or `*`, which is the host itself. */
size_t http_url(const struct http_message *message, bool is_tls, char *into, size_t *origin_length)
{
    const char *path = message->target, *host = message->host;
    const char *scheme = is_tls ? "https://" : "http://", *given = strstr(path, "://");
    size_t host_length = strlen(host);
    bool is_host = strcmp(message->method, "CONNECT") == 0;
    if (path[0] != '/' && (given != NULL || is_host)) {
        scheme = strncasecmp(path, "https:", 6) == 0 ? "https://" : "http://";
        host = is_host ? path : given + 3;
        host_length = strcspn(host, "/");
        path = host + host_length;
        for (const char *at = memchr(host, '@', host_length); at != NULL;
             at = memchr(host, '@', host_length)) {
            host_length -= (size_t)(at + 1 - host);
            host = at + 1;
        }
    } else if (path[0] != '/') {
        path = "";
    }
    size_t length = strlen(scheme);
    memcpy(into, scheme, length);
    host_length = host_length < HTTP_HOST_BYTES ? host_length : HTTP_HOST_BYTES - 1;
    memcpy(into + length, host, host_length);
    length += host_length;
    *origin_length = length;
    size_t path_length = strlen(path);
    memcpy(into + length, path, path_length);
    return length + path_length;
}
