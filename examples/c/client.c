// POSTs a question to an AI provider under two limits, requests and tokens, which all programs with limits.db share. Both are
// taken before the request is sent; a refusal pauses all programs; unused tokens are returned.
//
//     cc client.c -o client $(pkg-config --cflags --libs workglow_limit libcurl)
//     ./client http://localhost:8080/v1/chat/completions '{"model": "m", "messages": […], "max_tokens": 500}'
#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <workglow_limit.h>

enum { TIMES = 3 };                                    /* The most attempts of a refused request, */
static const uint64_t WAIT_NS = UINT64_C(60000000000); /* and the longest wait of each for its limits. */

struct limits {
    wgl_limiter *requests, *tokens;
};

struct started {
    wgl_permit request, tokens;
};

struct body {
    char *text;
    size_t size;
};

/* Takes both, or nothing. It waits for one limit and then only tries the other: a wait with a start already taken would send
   the request late. If the other denies, it waits there first and tries this one. */
static int start(const struct limits *limits, uint64_t estimate, struct started *started) {
    int tokens_first = 1;
    for (;; tokens_first = !tokens_first) {
        wgl_limiter *first = tokens_first ? limits->tokens : limits->requests;
        wgl_limiter *second = tokens_first ? limits->requests : limits->tokens;
        wgl_permit *of_first = tokens_first ? &started->tokens : &started->request;
        wgl_permit *of_second = tokens_first ? &started->request : &started->tokens;
        int status = wgl_acquire(first, "", 0, tokens_first ? estimate : 1, WAIT_NS, of_first, NULL);
        if (status != WGL_OK)
            return status; /* WGL_DENIED: no capacity in time */
        status = wgl_try_acquire(second, "", 0, tokens_first ? 1 : estimate, of_second, NULL);
        if (status == WGL_OK)
            return WGL_OK;
        wgl_cancel(first, of_first);
        if (status != WGL_DENIED)
            return status;
    }
}

static size_t append(char *data, size_t one, size_t size, void *to) {
    struct body *body = to;
    char *longer = realloc(body->text, body->size + size + 1);
    if (longer == NULL)
        return 0;
    memcpy(longer + body->size, data, one * size);
    body->text = longer;
    body->size += size;
    longer[body->size] = '\0';
    return size;
}

/* A number of the answer; -1 if it has none. (A program of more than one page has a JSON library for this.) */
static long long number(const struct body *body, const char *name) {
    const char *found = body->text == NULL ? NULL : strstr(body->text, name);
    return found == NULL ? -1 : strtoll(found + strlen(name), NULL, 10);
}

/* Returns whether no part of the request has left this machine. */
static int was_never_sent(CURLcode code) {
    return code == CURLE_URL_MALFORMAT || code == CURLE_UNSUPPORTED_PROTOCOL || code == CURLE_COULDNT_RESOLVE_HOST
           || code == CURLE_COULDNT_RESOLVE_PROXY || code == CURLE_COULDNT_CONNECT || code == CURLE_SSL_CONNECT_ERROR
           || code == CURLE_PEER_FAILED_VERIFICATION;
}

/* Sends it once, when the limits admit it. */
static int send_once(CURL *curl, const struct limits *limits, uint64_t estimate, struct body *answer, long *status) {
    struct started started;
    curl_off_t retry_after = 0;
    int code = start(limits, estimate, &started);
    if (code != WGL_OK) {
        fprintf(stderr, "%s\n", code == WGL_DENIED ? "no capacity within a minute" : wgl_last_error());
        return -1;
    }
    CURLcode sent = curl_easy_perform(curl);
    if (sent != CURLE_OK) {
        fprintf(stderr, "%s\n", curl_easy_strerror(sent));
        if (was_never_sent(sent)) {
            wgl_cancel(limits->requests, &started.request);
            wgl_cancel(limits->tokens, &started.tokens);
        } else { /* It may have cost what was reserved. */
            wgl_complete(limits->requests, &started.request);
            wgl_complete(limits->tokens, &started.tokens);
        }
        return -1;
    }
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, status);
    if (*status == 429 || *status == 503) { /* One program gets the refusal, and all wait, in every language. */
        curl_easy_getinfo(curl, CURLINFO_RETRY_AFTER, &retry_after); /* seconds, also if the server sent a date */
        wgl_pause(limits->requests, (uint64_t)(retry_after > 0 ? retry_after : 1) * UINT64_C(1000000000), "", 0);
        wgl_settle(limits->tokens, &started.tokens, 0);
    } else {
        long long used = number(answer, "\"total_tokens\":");
        if (used >= 0)
            wgl_settle(limits->tokens, &started.tokens, (uint64_t)used);
        else
            wgl_complete(limits->tokens, &started.tokens);
    }
    wgl_complete(limits->requests, &started.request); /* The body has been read: a slot of "5 concurrent" is free again. */
    return 0;
}

int main(int argc, char **argv) {
    wgl_store *store = NULL;
    struct limits limits = {NULL, NULL};
    if (argc != 3)
        return fprintf(stderr, "usage: client URL JSON\n"), 2;
    if (wgl_store_open("sqlite:limits.db", NULL, &store) != WGL_OK
        || wgl_policy_limiter_new(store, "requests", "50/1m + 5 concurrent", &limits.requests) != WGL_OK
        || wgl_policy_limiter_new(store, "tokens", "40000/1m", &limits.tokens) != WGL_OK)
        return fprintf(stderr, "%s\n", wgl_last_error()), 1;

    CURL *curl = curl_easy_init();
    struct curl_slist *headers = curl_slist_append(NULL, "Content-Type: application/json");
    struct body asked = {argv[2], strlen(argv[2])}, answer = {NULL, 0};
    long long most = number(&asked, "\"max_tokens\":");
    uint64_t estimate = asked.size / 4 + 1 + (most > 0 ? (uint64_t)most : 0);
    long status = 0;
    int failed = curl == NULL || headers == NULL;
    if (!failed) {
        curl_easy_setopt(curl, CURLOPT_URL, argv[1]);
        curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
        curl_easy_setopt(curl, CURLOPT_POSTFIELDS, argv[2]);
        curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, append);
        curl_easy_setopt(curl, CURLOPT_WRITEDATA, &answer);
    }
    for (int time = 0; !failed && time < TIMES; time++) {
        free(answer.text);
        answer = (struct body){NULL, 0};
        failed = send_once(curl, &limits, estimate, &answer, &status) != 0;
        if (status != 429 && status != 503)
            break; /* Otherwise the next start waits for the pause. */
    }
    if (!failed)
        printf("%ld: %s\n", status, answer.text == NULL ? "" : answer.text);
    free(answer.text);
    curl_slist_free_all(headers);
    curl_easy_cleanup(curl);
    wgl_limiter_free(limits.requests);
    wgl_limiter_free(limits.tokens);
    wgl_store_free(store);
    return failed;
}
