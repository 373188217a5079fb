-- Requests with an idempotency key, for a day.
CREATE TABLE boxd.idempotent_request (
    owner text NOT NULL,
    key_sha256 bytea NOT NULL CHECK (length(key_sha256) = 32),
    request_sha256 bytea NOT NULL CHECK (length(request_sha256) = 32),
    attempt text NOT NULL,            -- the call that started the request
    started timestamptz NOT NULL,
    status integer,                   -- HTTP status; NULL: not ended, or the end is not known
    sealed bytea,                     -- the response, encrypted with the key of the state directory
    PRIMARY KEY (owner, key_sha256)
);
