#include "exchanges.h"

#include "decimal.h"
#include "events.h"
#include "http.h"
#include "open_files.h"
#include "received_files.h"
#include "string_table.h"
#include "waits.h"

#include <sys/socket.h>

#define NUM_CONNECTIONS 1024
#define NUM_PLACES 8 /* that a key may have */
#define MAX_ATTEMPTS 64
#define PROMPT_NS                                                                             \
    1000000 /* a thread that receives so soon after it has sent has done nothing else: Python \
               takes 0.1 ms */

/* What a GET waits for, with the bytes that came since. */
struct pending_read {
    int64_t start, end, bytes, offset;
    bool is_open;
};

struct connection {
    _Atomic uint32_t holder;
    uint32_t generation; /* of the recording in which it is known */
    _Atomic uint64_t key;
    bool is_tls, is_opaque, is_used, in_flight;
    int descriptor; /* of the socket below TLS; -1: not known */
    int32_t url, origin;
    int64_t start, first_byte, last;
    struct pending_read read;
    struct http_message request, response;
};

__thread uint64_t unsent_key;
static table_pages connections; /* NUM_CONNECTIONS */

/* The last receipt of this thread that no connection through TLS has taken. */
static __thread struct {
    int descriptor;
    bool is_known;
    struct receipt_wait wait;
} encrypted;

/* The last connection on which this thread has sent, and when that had ended. */
static __thread struct {
    uint64_t key;
    int64_t end;
} last_sent;

/* ----------------------------------------------------------------------------------- the table */

static bool take(struct connection *connection, uint64_t key)
{
    for (int attempt = 0; attempt < MAX_ATTEMPTS; attempt++) {
        if (!try_lock(&connection->holder))
            continue;
        if (GET(connection, key) == key && connection->generation == GET(process, generation))
            return true;
        unlock(&connection->holder);
        return false;
    }
    return false;
}

static size_t place_of(uint64_t key, size_t number)
{
    return (mixed(key ^ 0x9e3779b97f4a7c15, 0xe7037ed1a0b428db) + number) % NUM_CONNECTIONS;
}

/* A connection that is known, locked; NULL: it is not. */
static struct connection *known_connection(uint64_t key)
{
    struct connection *table = mapped_table(&connections);
    for (size_t number = 0; table != NULL && number < NUM_PLACES; number++) {
        struct connection *connection = &table[place_of(key, number)];
        if (GET(connection, key) == key && take(connection, key))
            return connection;
    }
    return NULL;
}

static bool is_free(const struct connection *connection)
{
    return GET(connection, key) == 0 || connection->generation != GET(process, generation);
}

/* From now on the encrypted bytes below a connection are recorded. */
static void uncover(struct connection *connection)
{
    struct open_file *file = known_file(connection->descriptor);
    if (file != NULL && GET(file, key) == GET(connection, key)) /* else the descriptor is another */
        clear_flags(file, FILE_BELOW_HTTP);
    connection->descriptor = -1;
}

/* Unlocks a connection; false: it is not followed any more. */
static bool release(struct connection *connection)
{
    bool is_followed = !connection->is_opaque;
    if (!is_followed)
        uncover(connection);
    unlock(&connection->holder);
    return is_followed;
}

/* Enters a connection, locked; NULL: there is no room for the table. Where all places are taken,
 * one of them is taken over. */
static struct connection *new_connection(uint64_t key, bool is_tls)
{
    struct connection *table = map_table(&connections, NUM_CONNECTIONS * sizeof *table),
                      *found = NULL;
    for (size_t number = 0; table != NULL && found == NULL && number <= NUM_PLACES; number++) {
        struct connection *connection = &table[place_of(key, number % NUM_PLACES)];
        if ((is_free(connection) || number == NUM_PLACES) && try_lock(&connection->holder))
            found = connection;
    }
    if (found == NULL)
        return NULL;
    if (!is_free(found))
        uncover(found);
    SET(found, key, key);
    found->generation = GET(process, generation);
    found->is_tls = is_tls;
    found->is_opaque = found->is_used = found->in_flight = false;
    found->descriptor = -1;
    found->read.is_open = false;
    found->request.phase = HTTP_DONE;
    return found;
}

/* --------------------------------------------------------------------------------------- spans */

static bool is_method(const struct connection *connection, const char *method)
{
    return strcmp(connection->request.method, method) == 0;
}

/* Bytes of an error are none of the object. */
static void emit_read(struct connection *connection)
{
    const struct pending_read *read = &connection->read;
    bool is_read = is_method(connection, "GET") || is_method(connection, "HEAD");
    bool is_object = connection->response.status >= 200 && connection->response.status < 300;
    if (read->is_open && is_read)
        emit_event(&(struct event){read->start, read->end, is_object ? read->bytes : 0,
                                   read->offset, connection->url, -1, KIND_READ, SOURCE_SOCKET});
    connection->read.is_open = false;
}

static int32_t name_number(const struct connection *connection, bool is_whole)
{
    char text[96], *end = stpcpy(text, connection->request.method);
    if (connection->response.status == 0) {
        end = stpcpy(end, " failed");
    } else {
        *end++ = ' ';
        end = append_decimal(end, (uint64_t)connection->response.status);
        end = is_whole ? end : stpcpy(end, ", ended early");
    }
    end = connection->is_used ? end : stpcpy(end, ", new connection");
    return text_number(text, (size_t)(end - text));
}

/* The response is complete, or will not be. */
static void end_exchange(struct connection *connection, int64_t now)
{
    enum http_phase phase = connection->response.phase;
    const char *method = connection->request.method;
    bool sends = method[0] == 'P'; /* PUT, POST, PATCH */
    bool is_whole = phase == HTTP_DONE || phase == HTTP_UNTIL_CLOSE;
    int64_t end = is_whole ? connection->last : now;
    emit_read(connection);
    emit_event(&(struct event){
        connection->start, end < connection->start ? connection->start : end,
        sends ? connection->request.body : connection->response.body,
        connection->first_byte == 0 ? -1 : connection->first_byte - connection->start,
        connection->url, name_number(connection, is_whole), KIND_REQUEST, SOURCE_NONE});
    connection->in_flight = false;
    connection->is_used = true;
    connection->request.phase = HTTP_DONE;
}

static void begin_exchange(struct connection *connection)
{
    char url[HTTP_HOST_BYTES + HTTP_TARGET_BYTES + 16];
    size_t origin_length,
        length = http_url(&connection->request, connection->is_tls, url, &origin_length);
    connection->url = text_number(url, length);
    connection->origin = text_number(url, origin_length);
    http_begin_response(&connection->response, is_method(connection, "HEAD"));
    connection->in_flight = true;
    connection->first_byte = 0;
    connection->last = connection->start;
}

/* -------------------------------------------------------------------------------------- pieces */

static void feed_sent(struct connection *connection, const char *data, size_t size, int64_t start)
{
    while (size > 0 && !connection->is_opaque) {
        struct http_message *request = &connection->request;
        if (request->phase == HTTP_DONE) {
            if (connection->in_flight)
                end_exchange(connection,
                             start); /* the next one is sent before its response is complete */
            http_begin_request(request);
            connection->start = start;
        }
        size_t used = http_feed(request, data, size);
        if (http_has_head(request) && !connection->in_flight)
            begin_exchange(connection);
        connection->is_opaque = request->phase == HTTP_INVALID;
        data += used;
        size -= used;
    }
}

static void feed_received(struct connection *connection, const char *data, size_t size, int64_t now)
{
    struct http_message *response = &connection->response;
    while (size > 0 && response->phase < HTTP_DONE) {
        if (connection->first_byte == 0)
            connection->first_byte = now;
        size_t used = http_feed(response, data, size);
        if (response->phase == HTTP_START_LINE && response->line_length == 0)
            connection->first_byte = 0; /* that was an interim response */
        data += used;
        size -= used;
        if (used == 0)
            break;
    }
    bool is_tunnel =
        is_method(connection, "CONNECT") && http_has_head(response) && response->status < 300;
    connection->is_opaque = response->phase == HTTP_INVALID || is_tunnel;
}

/* Each part of a transfer whose bytes are known. */
#define EACH_PART(transfer, data, size, statement)                                           \
    do {                                                                                     \
        int64_t left_ = (transfer).bytes;                                                    \
        for (int place_ = 0; place_ < (transfer).count && left_ > 0; place_++) {             \
            const struct iovec *part_ = &(transfer).parts[place_];                           \
            size_t size = part_->iov_len < (uint64_t)left_ ? part_->iov_len : (size_t)left_; \
            const char *data = part_->iov_base;                                              \
            statement;                                                                       \
            left_ -= (int64_t)size;                                                          \
        }                                                                                    \
    } while (0)

static bool begins_request(struct transfer sent)
{
    for (int place = 0; sent.parts != NULL && place < sent.count; place++)
        if (sent.parts[place].iov_len > 0)
            return http_is_request(sent.parts[place].iov_base,
                                   sent.parts[place].iov_len < (uint64_t)sent.bytes
                                       ? sent.parts[place].iov_len
                                       : (size_t)sent.bytes);
    return false;
}

bool begins_exchange(int descriptor, struct transfer sent)
{
    struct sockaddr_storage address;
    socklen_t length = sizeof address;
    if (!begins_request(sent) || getpeername(descriptor, (struct sockaddr *)&address, &length) != 0)
        return false;
    exchange_closed(socket_key(descriptor)); /* of one that was closed unseen, by close_range(2) */
    return address.ss_family == AF_INET || address.ss_family == AF_INET6;
}

static void cover(struct connection *connection, int descriptor)
{
    struct open_file *file = known_file(descriptor);
    connection->descriptor = descriptor;
    if (file == NULL)
        return;
    SET(file, key, GET(connection, key));
    set_flags(file, FILE_BELOW_HTTP | FILE_NO_HTTP);
}

bool exchange_sent(uint64_t key, bool is_tls, int descriptor, struct transfer sent, int64_t start)
{
    struct connection *connection = known_connection(key);
    if (connection == NULL) {
        connection = new_connection(key, is_tls);
        if (connection == NULL)
            return false;
        connection->is_opaque = !begins_request(sent);
        if (!connection->is_opaque)
            cover(connection, descriptor);
    }
    connection->is_opaque = connection->is_opaque || sent.parts == NULL;
    if (!connection->is_opaque)
        EACH_PART(sent, data, size, feed_sent(connection, data, size, start));
    if (!connection->is_opaque) {
        last_sent.key = key;
        last_sent.end = clock_now();
        unsent_key = is_tls && connection->descriptor < 0 ? key : 0;
    }
    return release(connection);
}

/* Where a thread sends a request and then receives, it waits from the request on, though it may
 * have lost its processor meanwhile and find the response there. */
static struct receipt_wait since_request(const struct connection *connection,
                                         struct receipt_wait wait)
{
    int64_t received = wait.has_waited ? wait.start : wait.end;
    bool is_prompt = last_sent.key == GET(connection, key) && received - last_sent.end < PROMPT_NS;
    if (connection->first_byte == 0 && is_prompt && wait.end - connection->start >= LEAST_BLOCK_NS)
        return (struct receipt_wait){connection->start, wait.end, true};
    return wait;
}

static int64_t offset_of(const struct connection *connection, int64_t body)
{
    int64_t first = connection->response.first;
    if (first < 0 && connection->response.status == 206)
        first = connection->request.first;
    return (first < 0 ? 0 : first) + body;
}

static void add_received(struct connection *connection, struct transfer received,
                         struct receipt_wait wait, int64_t now)
{
    if (!connection->in_flight || connection->is_opaque)
        return;
    if (received.bytes == 0 || received.parts == NULL) {
        connection->is_opaque = received.bytes != 0;
        end_exchange(connection, now);
        return;
    }
    int64_t before = connection->response.body;
    wait = since_request(connection, wait);
    EACH_PART(received, data, size, feed_received(connection, data, size, now));
    int64_t came = connection->response.body - before;
    connection->last = now;
    if (connection->is_opaque)
        return;
    count_received(connection->origin, came);
    if (!connection->read.is_open || wait.has_waited) {
        emit_read(connection);
        int64_t start = wait.has_waited ? wait.start : wait.end;
        start = start < connection->start ? connection->start : start;
        connection->read = (struct pending_read){start, wait.end < start ? start : wait.end, came,
                                                 offset_of(connection, before), true};
    } else {
        connection->read.bytes += came;
    }
    if (connection->response.phase == HTTP_DONE)
        end_exchange(connection, now);
}

bool exchange_received(uint64_t key, struct transfer received, struct receipt_wait wait)
{
    struct connection *connection = known_connection(key);
    if (connection == NULL)
        return false;
    add_received(connection, received, wait, wait.end);
    return release(connection);
}

void exchange_below(int descriptor)
{
    struct connection *connection = known_connection(unsent_key);
    unsent_key = 0;
    if (connection == NULL)
        return;
    cover(connection, descriptor);
    unlock(&connection->holder);
}

void note_encrypted(int descriptor, struct receipt_wait wait)
{
    bool goes_on =
        encrypted.is_known && encrypted.descriptor == descriptor && encrypted.wait.has_waited;
    if (goes_on && wait.has_waited)
        wait.start = encrypted.wait.start;
    else if (goes_on)
        wait = encrypted.wait;
    encrypted.descriptor = descriptor;
    encrypted.is_known = true;
    encrypted.wait = wait;
}

void exchange_decrypted(uint64_t key, struct transfer received)
{
    struct connection *connection = known_connection(key);
    if (connection == NULL)
        return;
    int64_t now = clock_now();
    struct receipt_wait wait = {now, now, false};
    if (encrypted.is_known && encrypted.descriptor == connection->descriptor) {
        wait = encrypted.wait;
        encrypted.is_known = false;
    }
    add_received(connection, received, wait, now);
    release(connection);
}

void exchange_closed(uint64_t key)
{
    struct connection *connection = known_connection(key);
    if (connection == NULL)
        return;
    if (connection->in_flight && !connection->is_opaque)
        end_exchange(connection, clock_now());
    uncover(connection);
    SET(connection, key, 0);
    unlock(&connection->holder);
}
