package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"gatehouse/internal/mcp/rawjson"
)

// LatestLegacy is the newest revision that begins with a handshake.
const LatestLegacy = "2025-11-25"

const (
	modern       = "2026-07-28" // requests stand alone
	latestLegacy = LatestLegacy

	// discoverTimeout is how long a server that may not know server/discover gets to
	// answer it. A server of the older kind may stay silent.
	discoverTimeout = 5 * time.Second

	// answerLimit bounds one message of a server, in bytes.
	answerLimit = 64 << 20
)

// legacyRevisions are the older revisions that this client speaks, newest first.
var legacyRevisions = []string{latestLegacy, "2025-06-18", "2025-03-26", "2024-11-05"}

// Connect finds out which revision the server speaks: it sends server/discover and, if
// that is unknown to the server, initialize; over HTTP also by the older HTTP+SSE. before is the
// revision that the server spoke earlier, "" if that is unknown; after a legacy one initialize is
// sent first.
func (c *Conn) Connect(ctx context.Context, before string) error {
	if before != "" && before != modern {
		err := c.connectLegacy(ctx)
		if _, refused := errors.AsType[*RPCError](err); !refused {
			return err
		}
	}
	known, err := c.discover(ctx, discoverTimeout)
	if known || err != nil {
		return err
	}
	err = c.connectLegacy(ctx)
	if refused, ok := errors.AsType[*RPCError](err); ok && refused.Code == codeUnsupportedVersion {
		// It did not answer in time, but had read server/discover when initialize arrived.
		if known, again := c.discover(ctx, 10*discoverTimeout); known || again != nil {
			return again
		}
	}
	return err
}

// connectLegacy opens a session of the older kind: over HTTP by Streamable HTTP, and by
// HTTP+SSE if the server refuses that.
func (c *Conn) connectLegacy(ctx context.Context) error {
	err := c.initialize(ctx)
	if !refusesPost(err) || c.useSSE(ctx) != nil {
		return err
	}
	return c.initialize(ctx)
}

// discover sends server/discover and reports whether the server speaks the modern
// revision. Any refusal except one of access means that it is of the older kind
// (docs of 2026-07-28, "Versioning").
func (c *Conn) discover(ctx context.Context, patience time.Duration) (known bool, err error) {
	c.setRevision(modern, nil)
	soon, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	raw, err := c.Do(soon, Request{Method: "server/discover"})
	if speaksModern(err) {
		raw, err = c.Do(soon, Request{Method: "server/discover"})
	}
	var status *statusError
	switch {
	case errors.As(err, &status) && (status.code == 401 || status.code == 403):
		return false, err
	case err != nil && ctx.Err() != nil:
		return false, context.Cause(ctx)
	case err != nil && c.Err() != nil:
		return false, c.Err()
	case err != nil && isUnreachable(err):
		return false, err
	case err != nil:
		return false, nil
	}
	versions, _ := rawjson.Get(raw, "supportedVersions")
	for v := range rawjson.Elements(versions) {
		if rawjson.Equal(v, modern) {
			c.setRevision(modern, raw)
			return true, nil
		}
	}
	return false, nil
}

// codeUnsupportedVersion is the error of a server that does not speak the revision of a request.
const codeUnsupportedVersion = -32022

// speaksModern reports whether a server that refused a request's revision names the modern one
// among those that it supports, so that the request is worth repeating.
func speaksModern(err error) bool {
	refused, ok := errors.AsType[*RPCError](err)
	if !ok || refused.Code != codeUnsupportedVersion || rawjson.Kind(refused.Data) != '{' {
		return false
	}
	supported, _ := rawjson.Get(refused.Data, "supported")
	for v := range rawjson.Elements(supported) {
		if rawjson.Equal(v, modern) {
			return true
		}
	}
	return false
}

// initialize opens a session of the older kind.
func (c *Conn) initialize(ctx context.Context) error {
	c.setRevision(latestLegacy, nil)
	params := fmt.Appendf(nil, `{"protocolVersion":%q,"capabilities":%s,"clientInfo":%s}`,
		latestLegacy, c.o.Capabilities, c.clientInfo())
	raw, err := c.Do(ctx, Request{Method: "initialize", Params: params})
	if err != nil {
		return err
	}
	var r struct {
		Version string `json:"protocolVersion"`
	}
	if err := json.Unmarshal(raw, &r); err != nil {
		return fmt.Errorf("decode the answer to initialize: %w", err)
	}
	if !slices.Contains(legacyRevisions, r.Version) {
		return fmt.Errorf("the server uses protocol revision %.40q, which this program does not support", r.Version)
	}
	c.setRevision(r.Version, raw)
	return c.Notify(ctx, "notifications/initialized", nil)
}
