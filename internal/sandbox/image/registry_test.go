package image

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	library "github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"gatehouse/internal/access/secret"
)

// served is a registry on loopback. Requests pass through what between gives,
// once images were pushed.
type served struct {
	*httptest.Server
	host  string
	asked atomic.Int64
	mu    sync.Mutex
	gate  func(http.Handler) http.Handler
}

func serve(t testing.TB) *served {
	t.Helper()
	s := &served{}
	inner := library.New(library.Logger(log.New(io.Discard, "", 0)))
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.asked.Add(1)
		s.mu.Lock()
		h := inner
		if s.gate != nil {
			h = s.gate(inner)
		}
		s.mu.Unlock()
		h.ServeHTTP(w, r)
	}))
	s.host = strings.TrimPrefix(s.URL, "http://")
	t.Cleanup(s.Close)
	return s
}

// between puts something in front of the registry.
func (s *served) between(gate func(http.Handler) http.Handler) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gate = gate
}

// push puts an image in and gives the name to pull it by, and its digest.
func (s *served) push(t testing.TB, tag string, img v1.Image) (ref, digest string) {
	t.Helper()
	ref = s.host + "/some/thing:" + tag
	to, err := name.ParseReference(ref)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(to, img); err != nil {
		t.Fatal(err)
	}
	h, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return ref, h.String()
}

func (s *served) store(t testing.TB, o Options) *Store {
	t.Helper()
	o.Registries = append(o.Registries, s.URL)
	return storeIn(t, o)
}

func TestAnImageIsPulled(t *testing.T) {
	reg := serve(t)
	img := small(t)
	tagged, digest := reg.push(t, "v1", img)
	id, err := img.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	for _, ref := range []string{tagged, reg.host + "/some/thing@" + digest, tagged + "@" + digest} {
		s := reg.store(t, Options{})
		var last, of int64
		got, release, err := s.Get(t.Context(), ref, func(done, total int64) { last, of = done, total })
		if err != nil {
			t.Fatal(err)
		}
		if has := holds(t, got.Root); got.ID != id.String() || !maps.Equal(has, smallHolds) {
			t.Errorf("%s: got %s with %q", ref, got.ID, has)
		}
		if last == 0 || last != of {
			t.Errorf("told of %d bytes of %d", last, of)
		}
		release()
		list, err := s.List()
		if err != nil || len(list) != 1 || len(list[0].Refs) != 1 || list[0].Refs[0] != ref {
			t.Errorf("%+v, %v", list, err)
		}
		if err := s.Remove(ref); err != nil {
			t.Errorf("remove it by its name: %v", err)
		}
		if list, err := s.List(); err != nil || len(list) != 0 {
			t.Errorf("%+v, %v", list, err)
		}
	}
}

func TestADigestIsAskedForOnce(t *testing.T) {
	reg := serve(t)
	_, digest := reg.push(t, "v1", small(t))
	s := reg.store(t, Options{})
	for i := range 2 {
		before := reg.asked.Load()
		_, release, err := s.Get(t.Context(), reg.host+"/some/thing@"+digest, nil)
		if err != nil {
			t.Fatal(err)
		}
		release()
		if asked := reg.asked.Load() > before; asked != (i == 0) {
			t.Errorf("time %d: asked is %v", i+1, asked)
		}
	}
}

func TestATagMeansWhatItMeansNow(t *testing.T) {
	reg := serve(t)
	ref, _ := reg.push(t, "v1", small(t))
	var logged bytes.Buffer
	s := reg.store(t, Options{Log: slog.New(slog.NewTextHandler(&logged, nil))})
	get := func() string {
		img, release, err := s.Get(t.Context(), ref, nil)
		if err != nil {
			t.Fatal(err)
		}
		release()
		return img.ID
	}
	first := get()
	reg.push(t, "v1", imageOf(t, layerOf(t, "gzip", file{name: "other"})))
	second := get()
	if first == second {
		t.Error("a tag that was moved means what it did")
	}
	reg.between(func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusServiceUnavailable)
		})
	})
	if third := get(); third != second || !strings.Contains(logged.String(), "does not answer") {
		t.Errorf("a registry that cannot answer: got %s, want %s; logged %s", third, second, &logged)
	}
	reg.between(func(http.Handler) http.Handler { return http.NotFoundHandler() })
	if _, _, err := s.Get(t.Context(), ref, nil); err == nil ||
		!strings.Contains(err.Error(), "the image does not exist") {
		t.Errorf("a tag that is gone: %v", err)
	}
	reg.Close()
	if fourth := get(); fourth != second {
		t.Errorf("a registry that is gone: got %s, want %s", fourth, second)
	}
}

func TestOnlyNamedRegistriesAreAsked(t *testing.T) {
	reg := serve(t)
	ref, _ := reg.push(t, "v1", small(t))
	before := reg.asked.Load()
	if _, _, err := storeIn(t, Options{Registries: []string{"other.test"}}).Get(t.Context(), ref,
		nil); !errors.Is(err, ErrNotAllowed) || !strings.Contains(err.Error(), reg.host) {
		t.Errorf("one that is not named: %v", err)
	}
	_, _, err := storeIn(t, Options{Registries: []string{reg.host}}).Get(t.Context(), ref, nil)
	if err == nil || !strings.Contains(err.Error(), "TLS") {
		t.Errorf("one without TLS: %v", err)
	}
	// The attempt to speak TLS does not count: it is no request.
	if n := reg.asked.Load() - before; n != 0 {
		t.Errorf("%d requests were made", n)
	}
	for _, wrong := range []string{"", "https://host.test", "host.test/name", "http://", "a b"} {
		if _, err := New(Options{Folder: t.TempDir(), Registries: []string{wrong}}); err == nil {
			t.Errorf("%q was taken for a registry", wrong)
		}
	}
}

func TestTheImageForThisMachineIsPulled(t *testing.T) {
	reg := serve(t)
	mine := small(t)
	index := mutate.AppendManifests(empty.Index,
		mutate.IndexAddendum{
			Add:        imageFor(t, "s390x", layerOf(t, "gzip", file{name: "a"})),
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "s390x"}},
		},
		mutate.IndexAddendum{
			Add:        mine,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: runtime.GOARCH}},
		})
	ref := reg.host + "/many:v1"
	to, err := name.ParseReference(ref)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.WriteIndex(to, index); err != nil {
		t.Fatal(err)
	}
	img, release, err := reg.store(t, Options{}).Get(t.Context(), ref, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	if want, _ := mine.ConfigName(); img.ID != want.String() {
		t.Errorf("got %s, want %s", img.ID, want)
	}
}

const password = "correct-horse"

// basic asks for a user and a password, and shows what it was given.
func basic(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, word, _ := r.BasicAuth(); user == "someone" && word == password {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="here"`)
		w.WriteHeader(http.StatusUnauthorized)
		fmt.Fprintf(w, `{"errors":[{"code":"UNAUTHORIZED","message":%q}]}`, r.Header.Get("Authorization"))
	})
}

// bearer has callers fetch a token for a user and a password first.
func bearer(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/token" {
			if user, word, _ := r.BasicAuth(); user != "someone" || word != password {
				w.WriteHeader(http.StatusUnauthorized)
				fmt.Fprintf(w, `{"errors":[{"code":"DENIED","message":%q}]}`, r.Header.Get("Authorization"))
				return
			}
			io.WriteString(w, `{"token":"a-token"}`)
			return
		}
		if r.Header.Get("Authorization") == "Bearer a-token" {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="http://%s/token",service="here"`, r.Host))
		w.WriteHeader(http.StatusUnauthorized)
		fmt.Fprintf(w, `{"errors":[{"code":"UNAUTHORIZED","message":%q}]}`, r.Header.Get("Authorization"))
	})
}

func TestLoginsAreBroughtAndNotTold(t *testing.T) {
	for how, gate := range map[string]func(http.Handler) http.Handler{"basic": basic, "bearer": bearer} {
		t.Run(how, func(t *testing.T) {
			reg := serve(t)
			ref, _ := reg.push(t, "v1", small(t))
			reg.between(gate)
			_, release, err := reg.store(t,
				Options{Logins: map[string]Login{reg.host: {"someone", secret.New(password)}}}).Get(t.Context(),
				ref, nil)
			if err != nil {
				t.Fatal(err)
			}
			release()
			for _, logins := range []map[string]Login{nil,
				{reg.host: {"someone", secret.New("wrong-" + password)}},
				{"other.test": {"someone", secret.New(password)}}} {
				var logged bytes.Buffer
				s := reg.store(t, Options{Logins: logins, Log: slog.New(slog.NewTextHandler(&logged, nil))})
				_, _, err := s.Get(t.Context(), ref, nil)
				if err == nil || !strings.Contains(err.Error(), "credentials") {
					t.Fatalf("got %v", err)
				}
				for _, part := range []string{password,
					base64.StdEncoding.EncodeToString([]byte("someone:wrong-" + password))} {
					if strings.Contains(err.Error()+logged.String(), part) {
						t.Errorf("%v\n%s: the password is told", err, &logged)
					}
				}
			}
		})
	}
	t.Run("a token as it is", func(t *testing.T) {
		reg := serve(t)
		ref, _ := reg.push(t, "v1", small(t))
		reg.between(bearer)
		_, release, err := reg.store(t,
			Options{Logins: map[string]Login{reg.host: {Password: secret.New("a-token")}}}).Get(t.Context(), ref, nil)
		if err != nil {
			t.Fatal(err)
		}
		release()
	})
}

// blobs that a registry sends otherwise than it said are noticed.
//
//redteam:attack An image is believed when it was read to its end: a registry that lies
func TestARegistryIsNotBelieved(t *testing.T) {
	for name, change := range map[string]func([]byte) []byte{
		"changed": func(b []byte) []byte { b = bytes.Clone(b); b[4] ^= 1; return b },
		"cut":     func(b []byte) []byte { return b[:len(b)/2] },
		"longer":  func(b []byte) []byte { return append(bytes.Clone(b), make([]byte, 1<<20)...) },
		"empty":   func([]byte) []byte { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			reg := serve(t)
			ref, _ := reg.push(t, "v1", small(t))
			reg.between(func(next http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					got := httptest.NewRecorder()
					next.ServeHTTP(got, r)
					body := got.Body.Bytes()
					if strings.Contains(r.URL.Path, "/blobs/") && r.Method == http.MethodGet {
						body = change(body)
						got.Header().Del("Content-Length")
					}
					maps.Copy(w.Header(), got.Header())
					w.WriteHeader(got.Code)
					w.Write(body)
				})
			})
			folder := t.TempDir()
			if _, _, err := reg.store(t, Options{Folder: folder}).Get(t.Context(), ref, nil); err == nil {
				t.Error("nobody noticed")
			}
			nothingIsLeft(t, folder)
		})
	}
}

// A registry may lead elsewhere for its blobs, but not to what only this
// machine or its network reaches.
//
//redteam:attack An image is believed when it was read to its end: a registry redirects to this machine
func TestARegistryDoesNotLeadInside(t *testing.T) {
	var reached atomic.Bool
	inside := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Store(true) }))
	inside.Config.ErrorLog = log.New(io.Discard, "", 0)
	t.Cleanup(inside.Close)
	reg := serve(t)
	ref, _ := reg.push(t, "v1", small(t))
	for _, to := range []string{inside.URL, "http" + strings.TrimPrefix(inside.URL, "https")} {
		reg.between(func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if strings.Contains(r.URL.Path, "/blobs/") {
					http.Redirect(w, r, to+"/x?token="+password, http.StatusTemporaryRedirect)
					return
				}
				next.ServeHTTP(w, r)
			})
		})
		_, _, err := reg.store(t, Options{}).Get(t.Context(), ref, nil)
		if err == nil || reached.Load() || strings.Contains(err.Error(), password) {
			t.Errorf("%s: %v, reached is %v", to, err, reached.Load())
		}
		if want := map[bool]string{true: "this machine",
			false: "TLS"}[strings.HasPrefix(to, "https")]; !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", to, err, want)
		}
	}
}

func TestAddressesInsideAreNoRegistries(t *testing.T) {
	for address, ok := range map[string]bool{
		"127.0.0.1": false, "10.1.2.3": false, "192.168.0.1": false, "169.254.169.254": false,
		"100.100.100.200": false, "::1": false,
		"fe80::1": false, "fd00:ec2::254": false, "::ffff:127.0.0.1": false, "0.0.0.0": false, "224.0.0.1": false,
		"192.0.2.1": true, "2001:db8::1": true,
	} {
		at := netip.AddrPortFrom(netip.MustParseAddr(address), 443).String()
		if err := public("tcp", at, nil); (err == nil) != ok {
			t.Errorf("%s: %v", address, err)
		}
	}
}

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == pullAndDie {
		pull(os.Args[2], os.Args[3], os.Args[4])
	}
	os.Exit(m.Run())
}
