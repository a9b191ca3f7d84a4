#include "tools/report/serve.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "tools/report/markup.h"
#include "tools/report/page.h"

enum {
    CLIENTS_MAX = 16,
    REQUEST_BYTES = 8192,
    LOOK_MS = 500,
};
static const uint64_t CLIENT_NS = 10000000000; /* for a request and its reply */

/* The page, or why there is none yet: a run that has just begun has written no step. NULL: no memory. */
static char *make_page(const char *directory, size_t *out_size) {
    struct zero_error error;
    struct run_record record;
    char *page = NULL;
    FILE *file = open_memstream(&page, out_size);
    if (!file) return NULL;
    error_clear(&error);
    if (run_record_read(directory, &record, &error) == ZERO_OK) {
        page_write(&record, SERVE_REFRESH_S, file);
    } else {
        fprintf(file,
                "<!doctype html>\n<meta charset=\"utf-8\"><meta http-equiv=\"refresh\" content=\"%d\"><p>",
                SERVE_REFRESH_S);
        markup_text(file, error.message);
        fputs("</p>\n", file);
    }
    run_record_free(&record);
    return fclose(file) == 0 ? page : NULL;
}

/* A page from elsewhere may give its own name this machine's address; its requests then carry that name. */
static bool asks_this_machine(const char *request) {
    const char *host = strcasestr(request, "\r\nHost:");
    if (!host) return false;
    host += strlen("\r\nHost:");
    host += strspn(host, " ");
    bool named = strncmp(host, "127.0.0.1", 9) == 0 || strncmp(host, "localhost", 9) == 0;
    return named &&
           strchr(
               ": \t\r",
               host[9]); /* the name ends there; host[9] is no NUL, since the request ends in an empty line */
}

/* ---- clients: none makes another one wait ---- */

struct client {
    int socket;
    uint64_t since_ns;
    size_t got, sent, reply_bytes;
    char *reply; /* NULL: the request has not come yet */
    char request[REQUEST_BYTES];
};

struct server {
    const char *directory;
    uint32_t client_count;
    struct client clients[CLIENTS_MAX]; /* in the order in which they came */
};

static void hang_up(struct server *server, uint32_t index) {
    struct client *client = &server->clients[index];
    close(client->socket);
    free(client->reply);
    server->client_count--;
    memmove(client, client + 1, (server->client_count - index) * sizeof *client);
}

/* False: no memory. */
static bool make_reply(struct client *client, const char *directory) {
    enum { HEAD_BYTES = 160 };
    const char *status = "200 OK";
    size_t size = 0;
    if (!asks_this_machine(client->request))
        status = "403 Forbidden";
    else if (strncmp(client->request, "GET / ", 6) != 0)
        status = "404 Not Found";
    char *page = status[0] == '2' ? make_page(directory, &size) : NULL;
    if (page || status[0] != '2') client->reply = malloc(HEAD_BYTES + size);
    if (client->reply) {
        int length =
            snprintf(client->reply, HEAD_BYTES,
                     "HTTP/1.0 %s\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: %zu\r\n\r\n",
                     status, size);
        if (page) memcpy(client->reply + length, page, size);
        client->reply_bytes = (size_t)length + size;
    }
    free(page);
    return client->reply != NULL;
}

/* Reads up to the empty line that ends a request's head. False: the client has gone, or its request is too long. */
static bool hear(struct client *client, const char *directory) {
    ssize_t got = recv(client->socket, client->request + client->got, REQUEST_BYTES - 1 - client->got, 0);
    if (got <= 0) return got < 0 && errno == EAGAIN;
    client->got += (size_t)got;
    client->request[client->got] = 0;
    if (strstr(client->request, "\r\n\r\n")) return make_reply(client, directory);
    return client->got < REQUEST_BYTES - 1;
}

/* False: the client has the whole reply, or has gone. */
static bool tell(struct client *client) {
    ssize_t sent =
        send(client->socket, client->reply + client->sent, client->reply_bytes - client->sent, MSG_NOSIGNAL);
    if (sent < 0) return errno == EAGAIN;
    client->sent += (size_t)sent;
    return client->sent < client->reply_bytes;
}

/* The oldest client gives its place to a new one. */
static void admit(struct server *server, int socket) {
    if (server->client_count == CLIENTS_MAX) hang_up(server, 0);
    struct client *client = &server->clients[server->client_count++];
    client->socket = socket, client->since_ns = clock_now_ns();
    client->got = client->sent = 0, client->reply = NULL;
}

/* Serves the clients that are ready, and hangs up on those that take too long. Returns when a new one may wait. */
static void attend(struct server *server, int listener) {
    struct pollfd polls[CLIENTS_MAX + 1];
    do {
        uint32_t count = server->client_count;
        for (uint32_t i = 0; i < count; i++)
            polls[i] =
                (struct pollfd){server->clients[i].socket, server->clients[i].reply ? POLLOUT : POLLIN, 0};
        polls[count] = (struct pollfd){listener, POLLIN, 0};
        if (poll(polls, count + 1, count ? LOOK_MS : -1) < 0) return;
        for (uint32_t i = count; i-- > 0;) {
            struct client *client = &server->clients[i];
            bool stays = clock_now_ns() - client->since_ns < CLIENT_NS;
            if (stays && polls[i].revents)
                stays = client->reply ? tell(client) : hear(client, server->directory);
            if (!stays) hang_up(server, i);
        }
        if (polls[count].revents) return;
    } while (true);
}

static zero_status listen_here(uint16_t port, int *out_socket, struct zero_error *error) {
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int one = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (listener >= 0) setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof address) ||
        listen(listener, SOMAXCONN) || getsockname(listener, (struct sockaddr *)&address, &length)) {
        error_set(error, ZERO_E_IO, "cannot listen on 127.0.0.1:%d: %s; choose another --port", (int)port,
                  strerror(errno));
        if (listener >= 0) close(listener);
        return error->code;
    }
    printf("http://127.0.0.1:%d/\n", (int)ntohs(address.sin_port));
    fflush(stdout);
    *out_socket = listener;
    return ZERO_OK;
}

zero_status serve_run(const char *directory, uint16_t port, struct zero_error *error) {
    int listener = -1;
    struct server *server = calloc(1, sizeof *server);
    if (!server) return error_set(error, ZERO_E_MEMORY, "no memory to serve a page");
    server->directory = directory;
    zero_status status = listen_here(port, &listener, error);
    while (!status) {
        attend(server, listener);
        int connection = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (connection >= 0)
            admit(server, connection);
        else if (errno != EINTR && errno != ECONNABORTED && errno != EAGAIN)
            status = error_set(error, ZERO_E_IO, "cannot accept a browser: %s", strerror(errno));
    }
    while (server->client_count) hang_up(server, 0);
    if (listener >= 0) close(listener);
    free(server);
    return status;
}
