package identity

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
)

const (
	keysEvery = time.Hour       // how often keys are fetched without a request
	keysPause = time.Minute     // between fetches for an unknown key
	keysRetry = 5 * time.Second // between fetches while no keys are known
	keysKeep  = 24 * time.Hour  // how long keys stay valid while the provider cannot be reached
	fetchTime = 5 * time.Second // for one document
	mostFetch = 1 << 20         // bytes of a document
	mostKeys  = 64
	mostTries = 8 // keys tried on a token that names none
)

// keys holds the provider's public keys. They are fetched when the first token arrives, when a token
// names an unknown key, at most once a minute, and every hour; never for a request whose key is known.
type keys struct {
	o      OAuth
	client *http.Client
	// ctx ends with the service. A fetch outlives the request that started it, because other requests
	// wait for the same keys.
	ctx   context.Context
	stop  context.CancelFunc
	under sync.WaitGroup // the running fetch

	mu     sync.Mutex
	set    []jose.JSONWebKey
	got    time.Time     // when set was fetched
	tried  time.Time     // when the last fetch started
	flight chan struct{} // closed when the running fetch ends; nil if none runs
	failed error         // of the last fetch
	url    string        // of the keys; "" until it is known
}

func newKeys(o OAuth) *keys {
	client := o.Client
	if client == nil {
		client = &http.Client{
			Timeout:       fetchTime,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}
	}
	k := &keys{o: o, client: client, url: o.JWKS}
	k.ctx, k.stop = context.WithCancel(context.Background())
	return k
}

// stopFetching cancels the running fetch and waits for its end.
func (k *keys) stopFetching() {
	k.stop()
	k.under.Wait()
}

// findKey returns the keys that may have made a signature, all suitable ones if the token names none.
func (k *keys) findKey(ctx context.Context, kid, alg string) ([]jose.JSONWebKey, error) {
	k.mu.Lock()
	fits := k.fitting(kid, alg)
	if len(fits) > 0 {
		k.mu.Unlock()
		return fits, nil
	}
	flight := k.startFetch()
	k.mu.Unlock()
	if flight != nil {
		select {
		case <-flight:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if fits = k.fitting(kid, alg); len(fits) > 0 {
		return fits, nil
	}
	if k.failed != nil && len(k.set) == 0 {
		return nil, fmt.Errorf("%w: %w", errNoKeys, k.failed)
	}
	return nil, errToken
}

// startFetch starts a fetch of the keys if it may help now, and returns a channel that is closed at its
// end; nil if none is due. The caller holds mu. The fetch has its own deadline, so that a caller that
// gives up does not cancel it for the others.
func (k *keys) startFetch() chan struct{} {
	if k.flight != nil || k.ctx.Err() != nil {
		return k.flight
	}
	pause := keysPause
	if len(k.set) == 0 {
		pause = keysRetry
	}
	if !k.tried.IsZero() && time.Since(k.tried) < pause {
		return nil
	}
	k.tried, k.flight = time.Now(), make(chan struct{})
	flight := k.flight
	k.under.Go(func() { k.fetch(flight) })
	return flight
}

// refresh fetches the keys regularly, so that keys the provider has withdrawn are no longer accepted.
func (k *keys) refresh(ctx context.Context) {
	k.mu.Lock()
	var flight chan struct{}
	if !k.got.IsZero() { // otherwise no request has needed the keys yet
		flight = k.startFetch()
	}
	k.mu.Unlock()
	if flight != nil {
		select {
		case <-flight:
		case <-ctx.Done():
		}
	}
}

func (k *keys) fetch(flight chan struct{}) {
	ctx, cancel := context.WithTimeout(k.ctx, 2*fetchTime)
	defer cancel()
	set, err := k.download(ctx)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.failed = err
	switch {
	case err == nil:
		k.set, k.got = set, time.Now()
	case time.Since(k.got) > keysKeep:
		k.set = nil
	}
	k.flight = nil
	close(flight)
}

func (k *keys) fitting(kid, alg string) (fits []jose.JSONWebKey) {
	if time.Since(k.got) > keysKeep {
		return nil
	}
	for _, key := range k.set {
		if (kid == "" || key.KeyID == kid) && (key.Algorithm == "" || key.Algorithm == alg) && makes(key.Key, alg) {
			fits = append(fits, key)
		}
	}
	return fits[:min(len(fits), mostTries)]
}

// hasKey reports whether a key is still one of the provider's.
func (k *keys) hasKey(kid string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return time.Since(k.got) <= keysKeep &&
		slices.ContainsFunc(k.set, func(key jose.JSONWebKey) bool { return key.KeyID == kid })
}

// makes reports whether a key can make signatures by an algorithm, so that no key is used for an
// algorithm that it was not made for.
func makes(key any, alg string) bool {
	switch key := key.(type) {
	case *rsa.PublicKey:
		return (strings.HasPrefix(alg, "RS") || strings.HasPrefix(alg, "PS")) && key.N.BitLen() >= 2048
	case *ecdsa.PublicKey:
		return alg == map[int]string{256: "ES256", 384: "ES384", 521: "ES512"}[key.Curve.Params().BitSize]
	case ed25519.PublicKey:
		return alg == "EdDSA"
	}
	return false
}

// download fetches the keys, after discovering their URL if necessary.
func (k *keys) download(ctx context.Context) ([]jose.JSONWebKey, error) {
	k.mu.Lock()
	from := k.url
	k.mu.Unlock()
	if from == "" {
		var err error
		if from, err = k.discover(ctx); err != nil {
			return nil, err
		}
	}
	body, err := k.fetchDocument(ctx, from)
	if err != nil {
		return nil, err
	}
	set, err := parseKeys(body)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", from, err)
	}
	k.mu.Lock()
	k.url = from
	k.mu.Unlock()
	return set, nil
}

// parseKeys parses a JWK set. It omits keys of unknown kinds.
func parseKeys(body []byte) (set []jose.JSONWebKey, err error) {
	var doc struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(body, &doc); err != nil || len(doc.Keys) > mostKeys {
		return nil, errors.New("not a set of keys")
	}
	for _, raw := range doc.Keys {
		var key jose.JSONWebKey
		if key.UnmarshalJSON(raw) == nil && key.Valid() && key.IsPublic() && (key.Use == "" || key.Use == "sig") {
			set = append(set, key)
		}
	}
	if len(set) == 0 {
		return nil, errors.New("no key in it that can verify signatures")
	}
	return set, nil
}

// discover reads the URL of the keys from the provider's metadata: first at the location of OpenID
// Connect, then at those of RFC 8414.
func (k *keys) discover(ctx context.Context) (string, error) {
	issuer, err := url.Parse(k.o.Issuer)
	if err != nil {
		return "", err
	}
	path := strings.TrimSuffix(issuer.Path, "/")
	top := issuer.Scheme + "://" + issuer.Host
	var errs []error
	for _, place := range []string{
		path + "/.well-known/openid-configuration",
		"/.well-known/oauth-authorization-server" + path,
		"/.well-known/openid-configuration" + path,
	} {
		found, err := k.fetchJWKSURL(ctx, top+place)
		if err == nil {
			return found, nil
		}
		errs = append(errs, err)
	}
	return "", errors.Join(errs...)
}

func (k *keys) fetchJWKSURL(ctx context.Context, place string) (string, error) {
	body, err := k.fetchDocument(ctx, place)
	if err != nil {
		return "", err
	}
	var doc struct {
		Issuer string `json:"issuer"`
		Keys   string `json:"jwks_uri"`
	}
	if err := json.Unmarshal(body, &doc); err != nil {
		return "", fmt.Errorf("%s: not metadata of a provider", place)
	}
	if doc.Issuer != k.o.Issuer {
		return "", fmt.Errorf("%s: the issuer is %q there, and %q in the settings", place, clip(doc.Issuer), k.o.Issuer)
	}
	if _, err := checkURL("keys", doc.Keys); err != nil {
		return "", fmt.Errorf("%s: %w", place, err)
	}
	return doc.Keys, nil
}

func (k *keys) fetchDocument(ctx context.Context, from string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "GET", from, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	res, err := k.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if res.StatusCode != 200 {
		return nil, fmt.Errorf("%s: status %d", from, res.StatusCode)
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, mostFetch+1))
	if err == nil && len(body) > mostFetch {
		err = fmt.Errorf("%s: more than %d bytes", from, mostFetch)
	}
	return body, err
}
