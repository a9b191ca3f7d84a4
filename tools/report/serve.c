#include "tools/report/serve.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "tools/report/markup.h"
#include "tools/report/page.h"

enum { REQUEST_BYTES = 8192, REQUEST_WAIT_S = 2 };

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

/* Reads up to the empty line that ends a request's head. False: there was none in time, or it is too long. */
static bool read_request(int connection, char request[REQUEST_BYTES]) {
    size_t length = 0;
    while (length < REQUEST_BYTES - 1) {
        ssize_t got = recv(connection, request + length, REQUEST_BYTES - 1 - length, 0);
        if (got <= 0) return false;
        length += (size_t)got;
        request[length] = 0;
        if (strstr(request, "\r\n\r\n")) return true;
    }
    return false;
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

static void put(int connection, const char *data, size_t bytes) {
    while (bytes) {
        ssize_t sent = send(connection, data, bytes, MSG_NOSIGNAL);
        if (sent <= 0) return;
        data += sent, bytes -= (size_t)sent;
    }
}

static void answer(int connection, const char *directory) {
    char request[REQUEST_BYTES], head[160];
    const char *status = "200 OK";
    size_t size = 0;
    if (!read_request(connection, request)) return;
    if (!asks_this_machine(request))
        status = "403 Forbidden";
    else if (strncmp(request, "GET / ", 6) != 0)
        status = "404 Not Found";
    char *page = status[0] == '2' ? make_page(directory, &size) : NULL;
    int length = snprintf(
        head, sizeof head,
        "HTTP/1.0 %s\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: %zu\r\n\r\n", status, size);
    put(connection, head, (size_t)length);
    if (page) put(connection, page, size);
    free(page);
}

static zero_status listen_here(uint16_t port, int *out_socket, struct zero_error *error) {
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int one = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener >= 0) setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 8) ||
        getsockname(listener, (struct sockaddr *)&address, &length)) {
        error_set(error, ZERO_E_IO,
                  "cannot listen on 127.0.0.1:%d: %s; choose another --port, or 0 for a free one", (int)port,
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
    struct timeval patience = {.tv_sec = REQUEST_WAIT_S};
    zero_status status = listen_here(port, &listener, error);
    while (!status) {
        int connection = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (connection < 0 && (errno == EINTR || errno == ECONNABORTED)) continue;
        if (connection < 0) {
            status = error_set(error, ZERO_E_IO, "cannot accept a browser: %s", strerror(errno));
            close(listener);
            break;
        }
        setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
        setsockopt(connection, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
        answer(connection, directory);
        close(connection);
    }
    return status;
}
