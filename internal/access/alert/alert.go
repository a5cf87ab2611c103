// Package alert tells administrators that a call waits for them: by Web Push to the browsers that they subscribed, and
// by a request to a webhook.
//
// What is sent is a link to the page of approvals and nothing else: neither the tool nor its arguments nor the caller,
// because push services and the receivers of webhooks are other parties.
package alert

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gatehouse/internal/files/atomicfile"
	"gatehouse/internal/files/filelock"
)

const (
	maxFile      = 1 << 20
	ofOneUser    = 10 // subscriptions; the oldest is removed
	ofAll        = 200
	maxEndpoint  = 1024 // bytes
	sendTime     = 10 * time.Second
	lockTime     = 5 * time.Second
	pushLifetime = time.Hour // for which a push service keeps a message; approvals wait as long
)

// Options configures a Sender.
type Options struct {
	Path string // of the file with the key and the subscriptions
	// Webhook is the address of a webhook; "" means none.
	Webhook string
	// Link returns the address of a path of the pages, which a webhook gets.
	Link func(path string) string
	// Allowed reports whether a user may still get alerts. A subscription of one who may not is removed.
	Allowed func(ctx context.Context, user string) bool
	// Contact identifies this host to push services: a mailto or https URL (RFC 8292).
	Contact string
	// Client sends to push services, whose addresses browsers name; it has to dial public addresses alone. Hook sends
	// to the webhook, which the settings name.
	Client, Hook *http.Client
	Log          *slog.Logger
	Now          func() time.Time // nil means time.Now
}

// Sender sends alerts and keeps the subscriptions. It is safe for concurrent use, by several processes too.
type Sender struct{ o Options }

// New returns a sender.
func New(o Options) *Sender {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Sender{o}
}

// Subscription is a browser that gets alerts.
type Subscription struct {
	ID       string    `json:"id"`
	User     string    `json:"user"`
	Name     string    `json:"name,omitempty"` // of the browser
	Endpoint string    `json:"endpoint"`
	Key      string    `json:"p256dh"` // the public key of the browser, base64url
	Auth     string    `json:"auth"`   // its authentication secret, base64url
	Created  time.Time `json:"created"`
}

// Service returns the host of the push service.
func (s Subscription) Service() string {
	u, err := url.Parse(s.Endpoint)
	if err != nil {
		return ""
	}
	return u.Host
}

// kept is what the file holds.
type kept struct {
	Key           []byte         `json:"key"` // of this host: PKCS #8
	Subscriptions []Subscription `json:"subscriptions"`
}

// ErrInvalid is wrapped by the error of a subscription that no browser made.
var ErrInvalid = errors.New("the subscription cannot be used")

// ErrNotFound is returned for a subscription that does not exist.
var ErrNotFound = errors.New("no such subscription")

func (s *Sender) read() (k kept, err error) {
	b, err := atomicfile.Read(s.o.Path, maxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return k, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &k)
	}
	return k, err
}

// change changes the file. It makes the key of this host if there is none.
func (s *Sender) change(ctx context.Context, f func(*kept) error) error {
	ctx, cancel := context.WithTimeout(ctx, lockTime)
	defer cancel()
	if err := os.MkdirAll(filepath.Dir(s.o.Path), 0o700); err != nil {
		return err
	}
	lock, err := filelock.Wait(ctx, s.o.Path+".lock", filelock.Exclusive)
	if err != nil {
		return err
	}
	defer lock.Release()
	k, err := s.read()
	if err != nil {
		return err
	}
	if k.Key == nil {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err == nil {
			k.Key, err = x509.MarshalPKCS8PrivateKey(key)
		}
		if err != nil {
			return err
		}
	}
	if err := f(&k); err != nil {
		return err
	}
	b, err := json.Marshal(k)
	if err != nil {
		return err
	}
	return atomicfile.Write(s.o.Path, b)
}

func (k kept) private() (*ecdsa.PrivateKey, error) {
	key, err := x509.ParsePKCS8PrivateKey(k.Key)
	if err != nil {
		return nil, err
	}
	private, ok := key.(*ecdsa.PrivateKey)
	if !ok {
		return nil, errors.New("the key of this host is of another kind")
	}
	return private, nil
}

// Key returns the public key with which browsers subscribe, in base64url, and makes it if there is none.
func (s *Sender) Key(ctx context.Context) (string, error) {
	k, err := s.read()
	if err == nil && k.Key == nil {
		err = s.change(ctx, func(made *kept) error {
			k = *made
			return nil
		})
	}
	if err != nil {
		return "", err
	}
	private, err := k.private()
	if err != nil {
		return "", err
	}
	public, err := private.PublicKey.Bytes()
	return text.EncodeToString(public), err
}

// List returns the subscriptions, oldest first.
func (s *Sender) List() ([]Subscription, error) {
	k, err := s.read()
	return k.Subscriptions, err
}

// HasWebhook reports whether a webhook is called.
func (s *Sender) HasWebhook() bool { return s.o.Webhook != "" }

// Add adds a subscription of a browser, or replaces the one with the same endpoint.
func (s *Sender) Add(ctx context.Context, sub Subscription) (Subscription, error) {
	u, err := url.Parse(sub.Endpoint)
	if err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil || len(sub.Endpoint) > maxEndpoint {
		return sub, fmt.Errorf("%w: expected an https URL of a push service", ErrInvalid)
	}
	if _, _, err := sub.keys(); err != nil {
		return sub, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	sub.ID, sub.Created = "al_"+strings.ToLower(rand.Text()[:12]), s.o.Now().UTC().Truncate(time.Second)
	return sub, s.change(ctx, func(k *kept) error {
		k.Subscriptions = slices.DeleteFunc(k.Subscriptions, func(o Subscription) bool {
			return o.Endpoint == sub.Endpoint
		})
		mine := 0
		for _, o := range k.Subscriptions {
			if o.User == sub.User {
				mine++
			}
		}
		if mine >= ofOneUser {
			i := slices.IndexFunc(k.Subscriptions, func(o Subscription) bool { return o.User == sub.User })
			k.Subscriptions = slices.Delete(k.Subscriptions, i, i+1)
		}
		if len(k.Subscriptions) >= ofAll {
			return fmt.Errorf("%w: there are %d already", ErrInvalid, ofAll)
		}
		k.Subscriptions = append(k.Subscriptions, sub)
		return nil
	})
}

// Remove removes a subscription.
func (s *Sender) Remove(ctx context.Context, id string) error {
	return s.change(ctx, func(k *kept) error {
		n := len(k.Subscriptions)
		k.Subscriptions = slices.DeleteFunc(k.Subscriptions, func(o Subscription) bool { return o.ID == id })
		if len(k.Subscriptions) == n {
			return ErrNotFound
		}
		return nil
	})
}

// Sent is what became of an alert.
type Sent struct {
	Delivered int      `json:"delivered" doc:"number of browsers and webhooks that were told"`
	Failed    []string `json:"failed,omitempty" doc:"host and reason of each that was not"`
}

// Send sends the link to a path of the pages, such as /#/approvals/ap_5KQ7. A subscription that its push service does
// not know any more is removed.
func (s *Sender) Send(ctx context.Context, path string) (out Sent) {
	note := func(where string, err error) {
		if err != nil {
			out.Failed = append(out.Failed, where+": "+err.Error())
			s.o.Log.Warn("an alert was not delivered", "to", where, "err", err)
			return
		}
		out.Delivered++
	}
	if s.o.Webhook != "" {
		u, _ := url.Parse(s.o.Webhook) // the settings were checked
		note(u.Host, s.callWebhook(ctx, s.o.Link(path)))
	}
	k, err := s.read()
	if err != nil {
		note("push", err)
	}
	for _, sub := range k.Subscriptions {
		if s.o.Allowed != nil && !s.o.Allowed(ctx, sub.User) {
			s.Remove(ctx, sub.ID)
			continue
		}
		err := s.push(ctx, k, sub, path)
		if errors.Is(err, errGone) {
			s.Remove(ctx, sub.ID)
		}
		note(sub.Service(), err)
	}
	return out
}

// callWebhook posts a link. The member text is what chat services show.
func (s *Sender) callWebhook(ctx context.Context, link string) error {
	text := "A call waits for approval: "
	if strings.Contains(link, "/#/review/") {
		text = "A staged task expires soon: "
	}
	body, err := json.Marshal(map[string]string{"text": text + link, "link": link})
	if err != nil {
		return err
	}
	return post(ctx, s.o.Hook, s.o.Webhook, body, map[string]string{"Content-Type": "application/json"})
}

var errGone = errors.New("the browser has ended its subscription")

// post sends a body. Its error does not have the address, because addresses of push services and webhooks are secrets.
func post(ctx context.Context, client *http.Client, to string, body []byte, headers map[string]string) error {
	ctx, cancel := context.WithTimeout(ctx, sendTime)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, "POST", to, bytes.NewReader(body))
	if err != nil {
		return errors.New("the address is not a URL")
	}
	for k, v := range headers {
		r.Header.Set(k, v)
	}
	res, err := client.Do(r)
	if err != nil {
		if u, ok := errors.AsType[*url.Error](err); ok {
			err = u.Err
		}
		return err
	}
	defer res.Body.Close()
	io.Copy(io.Discard, io.LimitReader(res.Body, 64<<10))
	switch {
	case res.StatusCode == 404, res.StatusCode == 410:
		return errGone
	case res.StatusCode < 200 || res.StatusCode > 299:
		return fmt.Errorf("the answer is %d", res.StatusCode)
	}
	return nil
}

var text = base64.RawURLEncoding
