package index_test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"gatehouse/internal/files/index"
	"gatehouse/internal/files/vectorstore"
)

// eachStore runs a test over each store: the file of the texts (store is nil), PostgreSQL with pgvector if it is in
// .tools, and a fake of Qdrant that refuses what its published OpenAPI description does not allow.
func eachStore(t *testing.T, f func(t *testing.T, store vectorstore.Store)) {
	t.Run("file", func(t *testing.T) { f(t, nil) })
	t.Run("qdrant", func(t *testing.T) {
		q := &fakeQdrant{t: t, all: map[string]*fakeCollection{}}
		server := httptest.NewServer(q)
		t.Cleanup(server.Close)
		set := vectorstore.Settings{Kind: vectorstore.Qdrant, URL: server.URL, Key: "secret"}
		if err := set.Validate(); err != nil {
			t.Fatal(err)
		}
		s := vectorstore.New(set, nil)
		t.Cleanup(func() { s.Close() })
		f(t, s)
	})
	t.Run("postgres", func(t *testing.T) { f(t, realPostgres(t)) })
}

// realPostgres starts PostgreSQL with pgvector, which asks for a password.
func realPostgres(t *testing.T) vectorstore.Store {
	programs, err := filepath.Abs("../../../.tools/pgserver/pgserver/pginstall/bin")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(programs, "postgres")); err != nil {
		t.Skip("no PostgreSQL with pgvector in .tools; make verify-knowledge installs one")
	}
	dir, err := os.MkdirTemp("", "pg") // short, because the path of a socket is
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	user := &syscall.SysProcAttr{Setpgid: true}
	if os.Geteuid() == 0 { // PostgreSQL refuses to run as root
		user.Credential = &syscall.Credential{Uid: 65534, Gid: 65534}
		if err := os.Chown(dir, 65534, 65534); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "password"), []byte("pass word'\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	run := func(name string, args ...string) *exec.Cmd {
		c := exec.Command(filepath.Join(programs, name), args...)
		c.SysProcAttr, c.Dir, c.Env = user, dir, []string{"PATH=/usr/bin:/bin", "LC_ALL=C", "HOME=" + dir}
		return c
	}
	data := filepath.Join(dir, "data")
	out, err := run("initdb", "-D", data, "-U", "ann", "-A", "scram-sha-256", "--no-sync",
		"--pwfile", filepath.Join(dir, "password")).CombinedOutput()
	if err != nil {
		t.Skipf("PostgreSQL cannot be set up here: %v\n%s", err, out)
	}
	server := run("postgres", "-D", data, "-k", dir, "-c", "listen_addresses=", "-c", "fsync=off")
	var log strings.Builder
	server.Stdout, server.Stderr = &log, &log
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		server.Process.Signal(syscall.SIGINT) // it ends its connections
		server.Wait()
	})
	s := vectorstore.New(vectorstore.Settings{
		Kind: vectorstore.Postgres, Key: "pass word'",
		URL: "postgres://ann@/postgres?sslmode=disable&host=" + url.QueryEscape(dir),
	}, nil)
	t.Cleanup(func() { s.Close() })
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		err := s.Drop(t.Context(), "none")
		if err == nil {
			return s
		}
		if time.Now().After(end) {
			t.Fatalf("%v\n%s", err, log.String())
		}
	}
}

// fakeQdrant is a server with the part of Qdrant's REST API that is used.
type fakeQdrant struct {
	t    *testing.T
	mu   sync.Mutex
	all  map[string]*fakeCollection
	down bool
}

type fakeCollection struct {
	size   int
	points map[int64][]float32
}

var qdrantPath = regexp.MustCompile(`^/collections/([a-z0-9_]+)(/points|/points/delete|/points/query)?$`)

func (q *fakeQdrant) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q.mu.Lock()
	defer q.mu.Unlock()
	fail := func(status int, format string, args ...any) {
		w.WriteHeader(status)
		json.NewEncoder(w).Encode(map[string]any{"status": map[string]string{"error": fmt.Sprintf(format, args...)}})
	}
	m := qdrantPath.FindStringSubmatch(r.URL.Path)
	switch {
	case q.down:
		fail(http.StatusServiceUnavailable, "down")
		return
	case r.Header.Get("api-key") != "secret":
		fail(http.StatusForbidden, "no key")
		return
	case m == nil || r.Header.Get("Content-Type") != "application/json":
		fail(http.StatusNotFound, "no such path")
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		q.t.Error(err)
	}
	decode := func(into any) bool {
		d := json.NewDecoder(strings.NewReader(string(body)))
		d.DisallowUnknownFields()
		err := d.Decode(into)
		if err != nil {
			fail(http.StatusBadRequest, "Format error in JSON body: %v", err)
		}
		return err == nil
	}
	c := q.all[m[1]]
	var result any = map[string]any{"operation_id": 1, "status": "completed"}
	switch r.Method + m[2] {
	case "PUT":
		var in struct {
			Vectors struct {
				Size     int    `json:"size"`
				Distance string `json:"distance"`
			} `json:"vectors"`
		}
		if !decode(&in) {
			return
		}
		if c != nil {
			fail(http.StatusConflict, "Collection `%s` already exists!", m[1])
			return
		}
		if in.Vectors.Size < 1 || in.Vectors.Distance != "Cosine" {
			fail(http.StatusUnprocessableEntity, "Validation error")
			return
		}
		q.all[m[1]], result = &fakeCollection{in.Vectors.Size, map[int64][]float32{}}, true
	case "DELETE":
		result = c != nil
		delete(q.all, m[1])
	case "PUT/points":
		var in struct {
			Points []struct {
				ID     uint64    `json:"id"`
				Vector []float32 `json:"vector"`
			} `json:"points"`
		}
		if !decode(&in) {
			return
		}
		if c == nil {
			fail(http.StatusNotFound, "Collection `%s` doesn't exist!", m[1])
			return
		}
		for _, p := range in.Points {
			if len(p.Vector) != c.size {
				fail(http.StatusBadRequest, "Vector dimension error: expected dim: %d, got %d", c.size, len(p.Vector))
				return
			}
			c.points[int64(p.ID)] = p.Vector
		}
	case "POST/points/delete":
		var in struct {
			Points []uint64 `json:"points"`
		}
		if !decode(&in) {
			return
		}
		if c == nil {
			fail(http.StatusNotFound, "Collection `%s` doesn't exist!", m[1])
			return
		}
		for _, id := range in.Points {
			delete(c.points, int64(id))
		}
	case "POST/points/query":
		var in struct {
			Query  []float32 `json:"query"`
			Limit  int       `json:"limit"`
			Filter *struct {
				Must []struct {
					HasID []int64 `json:"has_id"`
				} `json:"must"`
			} `json:"filter"`
		}
		if !decode(&in) {
			return
		}
		if c == nil {
			fail(http.StatusNotFound, "Collection `%s` doesn't exist!", m[1])
			return
		}
		type hit struct {
			ID      int64   `json:"id"`
			Version int     `json:"version"`
			Score   float64 `json:"score"`
		}
		hits := []hit{}
		for id, v := range c.points {
			if in.Filter == nil || slices.Contains(in.Filter.Must[0].HasID, id) {
				hits = append(hits, hit{id, 0, cosine(in.Query, v)})
			}
		}
		slices.SortFunc(hits, func(a, b hit) int {
			if a.Score > b.Score {
				return -1
			}
			return 1
		})
		result = map[string]any{"points": hits[:min(in.Limit, len(hits))]}
	default:
		fail(http.StatusMethodNotAllowed, "no such method")
		return
	}
	json.NewEncoder(w).Encode(map[string]any{"result": result, "status": "ok", "time": 0.001})
}

func cosine(a, b []float32) float64 {
	var ab, aa, bb float64
	for i := range a {
		ab += float64(a[i]) * float64(b[i])
		aa += float64(a[i]) * float64(a[i])
		bb += float64(b[i]) * float64(b[i])
	}
	return ab / math.Sqrt(aa*bb)
}

// randomVectors returns unit vectors.
func randomVectors(n, dims int) (all [][]float32) {
	r := rand.New(rand.NewPCG(1, 2))
	for range n {
		v := make([]float32, dims)
		var sum float64
		for i := range v {
			v[i] = float32(r.NormFloat64())
			sum += float64(v[i]) * float64(v[i])
		}
		for i := range v {
			v[i] /= float32(math.Sqrt(sum))
		}
		all = append(all, v)
	}
	return all
}

// Each store finds the nearest, replaces, deletes, and keeps collections apart.
func TestStoresOfVectors(t *testing.T) {
	eachStore(t, func(t *testing.T, s vectorstore.Store) {
		if s == nil {
			t.Skip("TestShortlistFindsTheNearest is about the file")
		}
		ctx := t.Context()
		if ids, _, err := s.Nearest(ctx, "none", []float32{1, 0}, 3, nil); err != nil || len(ids) > 0 {
			t.Errorf("a collection that does not exist: %v, %v", ids, err)
		}
		if err := errors.Join(s.Delete(ctx, "none", []int64{1}), s.Drop(ctx, "none")); err != nil {
			t.Errorf("deletion from one: %v", err)
		}
		for _, name := range []string{"", "a/b", `a"b`, "A", strings.Repeat("a", 41), "a;drop"} {
			if s.Put(ctx, name, []int64{1}, [][]float32{{1, 0}}) == nil || s.Drop(ctx, name) == nil {
				t.Errorf("the name %q is taken", name)
			}
		}
		all := randomVectors(1300, 32)
		ids := make([]int64, len(all))
		for i := range ids {
			ids[i] = int64(i + 1)
		}
		var wait sync.WaitGroup
		for part := range 4 { // several hosts create the collection at once
			wait.Go(func() {
				if err := s.Put(ctx, "one", ids[part*325:][:325], all[part*325:][:325]); err != nil {
					t.Error(err)
				}
			})
		}
		wait.Wait()
		if err := s.Put(ctx, "two", []int64{7}, [][]float32{{0, 1, 0}}); err != nil {
			t.Fatal(err)
		}
		found := 0
		for _, q := range randomVectors(1320, 32)[1300:] {
			want := slices.Clone(ids)
			slices.SortFunc(want, func(a, b int64) int {
				if cosine(q, all[a-1]) > cosine(q, all[b-1]) {
					return -1
				}
				return 1
			})
			got, cosines, err := s.Nearest(ctx, "one", q, 200, nil)
			if err != nil || len(got) != 200 || len(cosines) != 200 || !slices.IsSortedFunc(cosines, func(a, b float32) int {
				return int(math.Round(float64(b-a) * 1e5))
			}) {
				t.Fatalf("got %d numbers, %v", len(got), err)
			}
			if math.Abs(float64(cosines[0])-cosine(q, all[got[0]-1])) > 1e-4 {
				t.Errorf("the cosine of the nearest is %v", cosines[0])
			}
			for _, id := range want[:50] {
				if slices.Contains(got, id) {
					found++
				}
			}
			some := []int64{want[1299], want[3], 99999}
			if got, _, err = s.Nearest(ctx, "one", q, 5, some); err != nil || !slices.Equal(got, []int64{want[3], want[1299]}) {
				t.Errorf("of %v: got %v, %v", some, got, err)
			}
		}
		if found < 20*50*98/100 {
			t.Errorf("%d of 1000 of the nearest are found", found)
		}
		if err := errors.Join(s.Put(ctx, "one", []int64{5}, [][]float32{all[9]}), s.Delete(ctx, "one", []int64{10})); err != nil {
			t.Fatal(err)
		}
		if got, _, err := s.Nearest(ctx, "one", all[9], 1, nil); err != nil || !slices.Equal(got, []int64{5}) {
			t.Errorf("after a change: got %v, %v", got, err)
		}
		if s.Put(ctx, "one", []int64{1}, [][]float32{{1, 0}}) == nil {
			t.Error("a vector of another length is taken")
		}
		if err := s.Drop(ctx, "one"); err != nil {
			t.Fatal(err)
		}
		if got, _, err := s.Nearest(ctx, "one", all[0], 1, nil); err != nil || len(got) > 0 {
			t.Errorf("after Drop: got %v, %v", got, err)
		}
		if got, _, err := s.Nearest(ctx, "two", []float32{0, 1, 0}, 9, nil); err != nil || !slices.Equal(got, []int64{7}) {
			t.Errorf("the other collection has %v, %v", got, err)
		}
		if err := s.Put(ctx, "one", ids[:3], all[:3]); err != nil {
			t.Errorf("the collection is not created again: %v", err)
		}
	})
}

// topicModel is an Embedder that knows which words mean the same.
type topicModel struct{}

func (topicModel) Space() (string, int) { return "topics", 4 }

func (topicModel) Embed(_ context.Context, texts []string, _ bool) (all [][]float32, err error) {
	for _, t := range texts {
		v := []float32{0, 0, 0, 0.1}
		sum := 0.01
		for i, group := range []string{"car vehicle engine", "soup recipe cooking", "court judge law"} {
			for w := range strings.FieldsSeq(group) {
				v[i] += float32(strings.Count(strings.ToLower(t), w))
			}
			sum += float64(v[i]) * float64(v[i])
		}
		for i := range v {
			v[i] /= float32(math.Sqrt(sum))
		}
		all = append(all, v)
	}
	return all, nil
}

// folder is files by their names.
type folder map[string]string

func (f folder) ingest(t *testing.T, s *index.Store, owner string, o index.Ingest) (index.Report, index.Collection, error) {
	o.Owner, o.Name, o.Below = owner, "c", "/d"
	for _, path := range slices.Sorted(maps.Keys(f)) {
		sum := sha256.Sum256([]byte(f[path]))
		o.Items = append(o.Items, index.Item{
			Path: path, Size: int64(len(f[path])), Modified: time.Unix(int64(sum[0])<<8+int64(sum[1]), 0),
		})
	}
	o.Read = func(_ context.Context, it index.Item) (index.Document, error) {
		text := f[it.Path]
		return index.Document{Text: []byte(text), Language: "markdown", Hash: sha256.Sum256([]byte(text))}, nil
	}
	return s.Ingest(t.Context(), o)
}

// The same ingests and questions give the same answers, wherever the vectors are.
func TestCollectionsOverEachStore(t *testing.T) {
	eachStore(t, func(t *testing.T, store vectorstore.Store) {
		o := index.Options{Embedder: topicModel{}}
		if store != nil {
			o.Vectors = store
		}
		path := filepath.Join(t.TempDir(), "i.db")
		s := index.Open(path, o)
		defer s.Close()
		all := folder{
			"/d/a.md": "# Garage\n\nThe vehicle stands behind the house and its engine is cold.\n",
			"/d/b.md": "# Kitchen\n\nA soup for the evening, as the recipe has it.\n",
			"/d/c.md": "# Town\n\nThe judge opened the session.\n",
		}
		_, c, err := all.ingest(t, s, "ann", index.Ingest{})
		if err != nil {
			t.Fatal(err)
		}
		find := func(c index.Collection, question string) (paths []string) {
			t.Helper()
			a, err := s.Query(t.Context(), c, index.Query{Text: question, Mode: index.Vector, Most: 1})
			if err != nil {
				t.Fatal(err)
			}
			for _, h := range a.Hits {
				paths = append(paths, h.File.Path)
			}
			return paths
		}
		expect := func(c index.Collection, want map[string]string) {
			t.Helper()
			for question, path := range want {
				if got := find(c, question); !slices.Equal(got, []string{path}) {
					t.Errorf("%s: got %v, want %s", question, got, path)
				}
			}
		}
		expect(c, map[string]string{"car": "/d/a.md", "cooking": "/d/b.md", "law": "/d/c.md"})
		words, err := s.Query(t.Context(), c, index.Query{Text: "cooking the evening"})
		if err != nil || len(words.Hits) == 0 || words.Hits[0].Words == 0 || words.Hits[0].Vectors < 0.9 {
			t.Errorf("both rankings: got %+v, %v", words.Hits, err)
		}
		other := folder{"/e/x.md": "# Secret\n\nThe car of bob.\n"}
		if _, _, err := other.ingest(t, s, "bob", index.Ingest{}); err != nil {
			t.Fatal(err)
		}
		expect(c, map[string]string{"car": "/d/a.md"})

		// A change, a removal and a new name.
		all["/d/a.md"] = "# Garage\n\nA court.\n"
		all["/d/z.md"] = all["/d/b.md"]
		delete(all, "/d/b.md")
		delete(all, "/d/c.md")
		r, c, err := all.ingest(t, s, "ann", index.Ingest{})
		if err != nil || r.Changed != 1 || r.Removed != 1 || r.Renamed != 1 {
			t.Fatalf("got %+v, %v", r, err)
		}
		expect(c, map[string]string{"law": "/d/a.md", "cooking": "/d/z.md"})
		_, c, err = all.ingest(t, s, "ann", index.Ingest{Recreate: true})
		if err != nil {
			t.Fatal(err)
		}
		expect(c, map[string]string{"law": "/d/a.md", "cooking": "/d/z.md"})

		if store != nil {
			// Vectors that were left by a host that was killed belong to no chunk, or to one of another owner.
			leftOver := []int64{1, 2, 3, 4, 5, 6, 7, 8, 9, 1000}
			vecs, _ := topicModel{}.Embed(t.Context(), slices.Repeat([]string{"car"}, len(leftOver)), false)
			if err := store.Put(t.Context(), index.StoredAs(c), leftOver, vecs); err != nil {
				t.Fatal(err)
			}
			a, err := s.Query(t.Context(), c, index.Query{Text: "car", Mode: index.Vector, Most: 10})
			if err != nil || slices.ContainsFunc(a.Hits, func(h index.Hit) bool { return !strings.HasPrefix(h.File.Path, "/d/") }) {
				t.Errorf("what another owner has is found: %+v, %v", a.Hits, err)
			}
			plain := index.Open(path, index.Options{Embedder: topicModel{}})
			defer plain.Close()
			if _, err := plain.Query(t.Context(), c, index.Query{Text: "car"}); err == nil {
				t.Error("a collection whose vectors are elsewhere is queried without them")
			}
		}
		if err := s.Delete(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		if store != nil {
			if ids, _, err := store.Nearest(t.Context(), index.StoredAs(c), []float32{1, 0, 0, 0}, 9, nil); err != nil || len(ids) > 0 {
				t.Errorf("a deleted collection has vectors: %v, %v", ids, err)
			}
		}
	})
}

// While the store cannot be reached, nothing is stored by halves, and the next ingest continues.
func TestAStoreThatIsDown(t *testing.T) {
	q := &fakeQdrant{t: t, all: map[string]*fakeCollection{}, down: true}
	server := httptest.NewServer(q)
	defer server.Close()
	store := vectorstore.New(vectorstore.Settings{Kind: vectorstore.Qdrant, URL: server.URL, Key: "secret"}, nil)
	s := index.Open("", index.Options{Embedder: topicModel{}, Vectors: store})
	defer s.Close()
	all := folder{"/d/a.md": "# Garage\n\nThe car.\n", "/d/b.md": "# Kitchen\n\nThe soup.\n"}
	if _, _, err := all.ingest(t, s, "ann", index.Ingest{}); err == nil || !strings.Contains(err.Error(), "503") {
		t.Errorf("an ingest without the store: %v", err)
	}
	q.mu.Lock()
	q.down = false
	q.mu.Unlock()
	r, c, err := all.ingest(t, s, "ann", index.Ingest{})
	if err != nil || r.Added != 2 {
		t.Fatalf("got %+v, %v", r, err)
	}
	a, err := s.Query(t.Context(), c, index.Query{Text: "vehicle", Mode: index.Vector, Most: 1})
	if err != nil || len(a.Hits) != 1 || a.Hits[0].File.Path != "/d/a.md" {
		t.Errorf("got %+v, %v", a.Hits, err)
	}
}

func TestSettingsOfStores(t *testing.T) {
	for _, s := range []vectorstore.Settings{
		{Kind: "redis", URL: "http://localhost"},
		{Kind: "qdrant"},
		{Kind: "qdrant", URL: "http://example.org:6333"},
		{Kind: "qdrant", URL: "https://u:p@example.org"},
		{Kind: "postgres", URL: "postgres://localhost/db"},
		{Kind: "postgres", URL: "postgres://ann:secret@localhost/db"},
		{Kind: "postgres", URL: "postgres://ann@example.org/db?sslmode=prefer"},
	} {
		err := s.Validate()
		if err == nil || strings.Contains(err.Error(), "secret@") {
			t.Errorf("%+v: %v", s, err)
		}
	}
	for _, s := range []vectorstore.Settings{
		{}, {Kind: "qdrant", URL: "http://127.0.0.1:6333"},
		{Kind: "qdrant", URL: "https://example.org:6333", Key: "${secret:QDRANT}"},
		{Kind: "postgres", URL: "postgres://ann@example.org/db?sslmode=verify-full"},
	} {
		if err := s.Validate(); err != nil {
			t.Errorf("%+v: %v", s, err)
		}
	}
}
