#include "channels.h"

#include "decimal.h"
#include "real.h"

#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

/* Different kinds of objects have different numbers of the same value. */
enum { OF_FILE = 1, OF_SOCKET = 2, OF_EVENT = 3 };

static uint64_t of_socket(uint64_t inode)
{
    return object_hash(inode, OF_SOCKET);
}

/* ------------------------------------------------------------------------------------- eventfd */

/* "eventfd-id: 7" in /proc/self/fdinfo (Linux 5.2). */
static uint64_t find_event(int descriptor)
{
    static const char label[] = "eventfd-id:";
    char path[40] = "/proc/self/fdinfo/", text[256];
    *append_decimal(path + 18, (uint64_t)descriptor) = '\0';
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return NO_CHANNEL;
    ssize_t got = real_system_call(SYS_read, file, (long)text, sizeof text - 1, 0, 0, 0);
    close(file);
    atomic_fetch_add(&process->own_calls, 1);
    atomic_fetch_add(&process->own_bytes, got > 0 ? got : 0);
    text[got > 0 ? got : 0] = '\0';
    const char *place = strstr(text, label);
    if (place == NULL)
        return NO_CHANNEL;
    uint64_t id = 0;
    for (place += sizeof label - 1; *place == ' ' || (*place >= '0' && *place <= '9'); place++)
        id = *place == ' ' ? id : id * 10 + (uint64_t)(*place - '0');
    return object_hash(id, OF_EVENT);
}

/* ------------------------------------------------------------------------------------- sockets */

#define NOT_YET 0 /* the other end has not accepted the connection: it has no number */

/* The socket at the other end of a local one, which only the kernel's diagnosis of sockets says. */
static uint64_t find_local_peer(uint64_t inode)
{
    struct {
        struct nlmsghdr head;
        struct unix_diag_req request;
    } question = {.head = {.nlmsg_len = sizeof question,
                           .nlmsg_type = SOCK_DIAG_BY_FAMILY,
                           .nlmsg_flags = NLM_F_REQUEST},
                  .request = {.sdiag_family = AF_UNIX,
                              .udiag_states = UINT32_MAX,
                              .udiag_ino = (uint32_t)inode,
                              .udiag_show = UDIAG_SHOW_PEER,
                              .udiag_cookie = {UINT32_MAX, UINT32_MAX}}};
    union {
        struct nlmsghdr head;
        char bytes[512];
    } answer;
    uint64_t found = NO_CHANNEL;
    int asked = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
    if (asked < 0)
        return NO_CHANNEL;
    ssize_t got = -1;
    if (REAL(send)(asked, &question, sizeof question, 0) == (ssize_t)sizeof question)
        got = REAL(recv)(asked, &answer, sizeof answer, MSG_DONTWAIT);
    close(asked);
    if (got < (ssize_t)NLMSG_LENGTH(sizeof(struct unix_diag_msg)) ||
        answer.head.nlmsg_type != SOCK_DIAG_BY_FAMILY)
        return NO_CHANNEL;
    const struct unix_diag_msg *message = NLMSG_DATA(&answer.head);
    struct rtattr *part =
        (struct rtattr *)(void *)(answer.bytes + NLMSG_LENGTH(NLMSG_ALIGN(sizeof *message)));
    int length = (int)(got - (ssize_t)NLMSG_LENGTH(NLMSG_ALIGN(sizeof *message)));
    for (; RTA_OK(part, length); part = RTA_NEXT(part, length))
        if (part->rta_type == UNIX_DIAG_PEER && RTA_PAYLOAD(part) >= sizeof(uint32_t)) {
            uint32_t peer;
            memcpy(&peer, RTA_DATA(part), sizeof peer);
            found = peer == 0 ? NOT_YET : of_socket(peer);
        }
    return found;
}

/* One number of an Internet address, of the fourth version also where it is written as the sixth.
 */
static uint64_t number_of_address(const struct sockaddr_storage *address)
{
    static const unsigned char mapped[12] = {[10] = 0xff, [11] = 0xff};
    uint64_t high = 0, low;
    in_port_t port;
    if (address->ss_family == AF_INET) {
        const struct sockaddr_in *of = (const void *)address;
        low = of->sin_addr.s_addr;
        port = of->sin_port;
    } else {
        const struct sockaddr_in6 *of = (const void *)address;
        const unsigned char *bytes = of->sin6_addr.s6_addr;
        port = of->sin6_port;
        memcpy(&low, bytes + 8, 8);
        memcpy(&high, bytes, 8);
        if (memcmp(bytes, mapped, sizeof mapped) == 0) {
            uint32_t short_address;
            memcpy(&short_address, bytes + 12, 4);
            low = short_address;
        }
    }
    return object_hash(object_hash(high, low), port);
}

static uint64_t find_socket(int descriptor, uint64_t inode, bool sends)
{
    struct sockaddr_storage own, other;
    socklen_t own_length = sizeof own, other_length = sizeof other;
    memset(&own, 0, sizeof own);
    memset(&other, 0, sizeof other);
    if (getsockname(descriptor, (struct sockaddr *)&own, &own_length) != 0)
        return NO_CHANNEL;
    if (own.ss_family == AF_UNIX)
        return sends ? find_local_peer(inode) : of_socket(inode);
    if ((own.ss_family != AF_INET && own.ss_family != AF_INET6) ||
        getpeername(descriptor, (struct sockaddr *)&other, &other_length) != 0)
        return NO_CHANNEL;
    uint64_t here = number_of_address(&own), there = number_of_address(&other);
    return sends ? object_hash(here, there) : object_hash(there, here);
}

uint64_t find_channel(int descriptor, struct open_file *file, bool sends)
{
    struct stat status;
    int saved_errno = begin_own_work();
    uint64_t found = NO_CHANNEL;
    if (flags_of(file) & FILE_EVENT)
        found = find_event(descriptor);
    else if (fstat(descriptor, &status) == 0)
        found = flags_of(file) & FILE_PIPE
                    ? object_hash(status.st_ino << 24 ^ status.st_dev, OF_FILE)
                    : find_socket(descriptor, status.st_ino, sends);
    end_own_work(saved_errno);
    if (found == NOT_YET)
        return NO_CHANNEL;
    if (sends)
        SET(file, sends, found);
    else
        SET(file, receives, found);
    return found;
}
