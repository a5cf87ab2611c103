package backup

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/md5"
	"crypto/sha256"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"gatehouse/internal/access/secret"
)

// fakeS3 is a service with one bucket that judges every signature by the
// published rules, from the request as it arrived and not by our own code.
type fakeS3 struct {
	t      *testing.T
	server *httptest.Server
	now    func() time.Time

	mu      sync.Mutex
	objects map[string][]byte
	uploads map[string]*fakeUpload
	page    int  // objects on one page of a list
	cut     bool // the connection breaks in the middle of an object
	fail    func(r *http.Request) (status int, code string)
	calls   []string
}

type fakeUpload struct {
	key   string
	begun time.Time
	parts map[int][]byte
}

const (
	fakeKey    = "AKIDEXAMPLE"
	fakeSecret = "a secret/key+with=signs"
	fakeBucket = "house-backups"
	fakeRegion = "eu-central-1"
)

func newFakeS3(t *testing.T, now func() time.Time) *fakeS3 {
	f := &fakeS3{t: t, now: now, objects: map[string][]byte{}, uploads: map[string]*fakeUpload{}, page: 1000}
	f.server = httptest.NewServer(f)
	t.Cleanup(f.server.Close)
	return f
}

func (f *fakeS3) target(path string, keep int) Target {
	return Target{
		Name:      "cloud",
		Kind:      S3,
		Endpoint:  f.server.URL,
		Bucket:    fakeBucket,
		Region:    fakeRegion,
		AccessKey: fakeKey,
		Secret:    "S3",
		Path:      path,
		Keep:      keep,
	}
}

func (f *fakeS3) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, r.Method+" "+r.URL.RawQuery)
	if err := f.judge(r, body); err != nil {
		f.refuse(w, http.StatusForbidden, "SignatureDoesNotMatch", err.Error())
		return
	}
	if f.fail != nil {
		if status, code := f.fail(r); status != 0 {
			f.refuse(w, status, code, "as the test wants it")
			return
		}
	}
	bucket, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if bucket != fakeBucket {
		f.refuse(w, http.StatusNotFound, "NoSuchBucket", "there is no such bucket")
		return
	}
	f.serve(w, r, key, body)
}

func (f *fakeS3) refuse(w http.ResponseWriter, status int, code, message string) {
	w.WriteHeader(status)
	fmt.Fprintf(w, "<?xml version=\"1.0\"?><Error><Code>%s</Code><Message>", code)
	xml.EscapeText(w, []byte(message))
	fmt.Fprint(w, "</Message></Error>")
}

// judge works the signature out anew. It insists on what the rules do: the
// host and every x-amz header signed, the payload's true hash, a clock no more
// than 15 minutes off, and names in order.
func (f *fakeS3) judge(r *http.Request, body []byte) error {
	auth, ok := strings.CutPrefix(r.Header.Get("Authorization"), "AWS4-HMAC-SHA256 ")
	if !ok {
		return errors.New("another algorithm")
	}
	fields := map[string]string{}
	for part := range strings.SplitSeq(auth, ",") {
		k, v, _ := strings.Cut(strings.TrimSpace(part), "=")
		fields[k] = v
	}
	at, err := time.Parse("20060102T150405Z", r.Header.Get("X-Amz-Date"))
	if err != nil || time.Since(at).Abs() > 15*time.Minute {
		return fmt.Errorf("date %v, %v", at, err)
	}
	scope := []string{fakeKey, at.Format("20060102"), fakeRegion, "s3", "aws4_request"}
	if fields["Credential"] != strings.Join(scope, "/") {
		return fmt.Errorf("credential %q", fields["Credential"])
	}
	hash := r.Header.Get("X-Amz-Content-Sha256")
	unsigned := hash == "UNSIGNED-PAYLOAD" && len(body) == 0
	if !unsigned && hash != fmt.Sprintf("%x", sha256.Sum256(body)) {
		return fmt.Errorf("the hash of the payload is %.70s", hash)
	}
	signed := strings.Split(fields["SignedHeaders"], ";")
	if !slices.IsSorted(signed) || !slices.Contains(signed, "host") {
		return fmt.Errorf("signed headers %v", signed)
	}
	var canonical strings.Builder
	canonical.WriteString(r.Method + "\n")
	path, query, _ := strings.Cut(r.RequestURI, "?")
	canonical.WriteString(path + "\n") // the client escapes as the rules want it, or is refused
	for i := range len(path) {
		if c := path[i]; c != '/' && c != '%' &&
			!strings.ContainsRune("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~", rune(c)) {
			return fmt.Errorf("%q in the path is not escaped", c)
		}
	}
	var pairs []string
	for pair := range strings.SplitSeq(query, "&") {
		if pair == "" {
			continue
		}
		k, v, _ := strings.Cut(pair, "=")
		k, _ = url.QueryUnescape(k)
		v, _ = url.QueryUnescape(v)
		pairs = append(
			pairs,
			strings.ReplaceAll(url.QueryEscape(k), "+", "%20")+"="+strings.ReplaceAll(url.QueryEscape(v), "+", "%20"),
		)
	}
	slices.Sort(pairs)
	canonical.WriteString(strings.Join(pairs, "&") + "\n")
	for name := range r.Header {
		if low := strings.ToLower(name); strings.HasPrefix(low, "x-amz-") && !slices.Contains(signed, low) {
			return fmt.Errorf("%s is not signed", low)
		}
	}
	for _, name := range signed {
		value := r.Header.Get(name)
		if name == "host" {
			value = r.Host
		}
		canonical.WriteString(name + ":" + strings.TrimSpace(value) + "\n")
	}
	canonical.WriteString("\n" + fields["SignedHeaders"] + "\n" + hash)
	toSign := fmt.Sprintf(
		"AWS4-HMAC-SHA256\n%s\n%s\n%x",
		r.Header.Get("X-Amz-Date"),
		strings.Join(scope[1:], "/"),
		sha256.Sum256([]byte(canonical.String())),
	)
	step := func(key []byte, s string) []byte {
		h := hmac.New(sha256.New, key)
		io.WriteString(h, s)
		return h.Sum(nil)
	}
	key := []byte("AWS4" + fakeSecret)
	for _, s := range scope[1:] {
		key = step(key, s)
	}
	if got := hex.EncodeToString(step(key, toSign)); got != fields["Signature"] {
		return fmt.Errorf("signature %s, expected %s of\n%s", fields["Signature"], got, canonical.String())
	}
	return nil
}

func (f *fakeS3) serve(w http.ResponseWriter, r *http.Request, key string, body []byte) {
	q := r.URL.Query()
	upload := f.uploads[q.Get("uploadId")]
	switch {
	case q.Has("uploadId") && (upload == nil || upload.key != key):
		f.refuse(w, http.StatusNotFound, "NoSuchUpload", "there is none")
	case r.Method == http.MethodPost && q.Has("uploads"):
		id := fmt.Sprintf("id/%d+=", len(f.uploads)+1)
		f.uploads[id] = &fakeUpload{key, f.now(), map[int][]byte{}}
		fmt.Fprintf(
			w,
			"<InitiateMultipartUploadResult><Key>%s</Key><UploadId>%s</UploadId></InitiateMultipartUploadResult>",
			key,
			id,
		)
	case r.Method == http.MethodPut && upload != nil:
		n, err := strconv.Atoi(q.Get("partNumber"))
		if err != nil || n < 1 || n > 10_000 {
			f.refuse(w, http.StatusBadRequest, "InvalidArgument", "part number")
			return
		}
		upload.parts[n] = body
		w.Header().Set("ETag", etag(body))
	case r.Method == http.MethodPost && upload != nil:
		f.complete(w, q.Get("uploadId"), upload, body)
	case r.Method == http.MethodDelete && upload != nil:
		delete(f.uploads, q.Get("uploadId"))
		w.WriteHeader(http.StatusNoContent)
	case r.Method == http.MethodDelete:
		delete(f.objects, key)
		w.WriteHeader(http.StatusNoContent)
	case r.Method == http.MethodGet && key != "":
		o, there := f.objects[key]
		if !there {
			f.refuse(w, http.StatusNotFound, "NoSuchKey", "there is no such key")
			return
		}
		w.Header().Set("Last-Modified", f.now().UTC().Format(http.TimeFormat))
		w.Header().Set("ETag", etag(o))
		if f.cut {
			w.Header().Set("Content-Length", strconv.Itoa(len(o)))
			w.Write(o[:len(o)/2])
			panic(http.ErrAbortHandler)
		}
		w.Write(o)
	case q.Has("uploads"):
		fmt.Fprint(w, "<ListMultipartUploadsResult>")
		for id, u := range f.uploads {
			if strings.HasPrefix(u.key, q.Get("prefix")) {
				fmt.Fprintf(
					w,
					"<Upload><Key>%s</Key><UploadId>%s</UploadId><Initiated>%s</Initiated></Upload>",
					u.key,
					id,
					u.begun.Format(time.RFC3339),
				)
			}
		}
		fmt.Fprint(w, "</ListMultipartUploadsResult>")
	case q.Get("list-type") == "2":
		f.list(w, q)
	default:
		f.refuse(w, http.StatusBadRequest, "InvalidRequest", "not known here")
	}
}

func etag(b []byte) string { return fmt.Sprintf("%q", fmt.Sprintf("%x", md5.Sum(b))) }

// complete wants all parts in order, all but the last of 5 MiB or more.
func (f *fakeS3) complete(w http.ResponseWriter, id string, u *fakeUpload, body []byte) {
	var said struct {
		XMLName xml.Name `xml:"CompleteMultipartUpload"`
		Part    []struct {
			PartNumber int
			ETag       string
		}
	}
	if err := xml.Unmarshal(body, &said); err != nil || len(said.Part) == 0 {
		f.refuse(w, http.StatusBadRequest, "MalformedXML", "no list of parts")
		return
	}
	var whole []byte
	for i, p := range said.Part {
		b, there := u.parts[p.PartNumber]
		switch {
		case !there || strings.Trim(p.ETag, `"`) != strings.Trim(etag(b), `"`):
			f.refuse(w, http.StatusBadRequest, "InvalidPart", "another part")
			return
		case i > 0 && p.PartNumber <= said.Part[i-1].PartNumber:
			f.refuse(w, http.StatusBadRequest, "InvalidPartOrder", "out of order")
			return
		case len(b) < 5<<20 && i < len(said.Part)-1:
			f.refuse(w, http.StatusBadRequest, "EntityTooSmall", "too small")
			return
		}
		whole = append(whole, b...)
	}
	delete(f.uploads, id)
	f.objects[u.key] = whole
	fmt.Fprintf(
		w,
		"<CompleteMultipartUploadResult><Bucket>%s</Bucket><Key>%s</Key></CompleteMultipartUploadResult>",
		fakeBucket,
		u.key,
	)
}

func (f *fakeS3) list(w http.ResponseWriter, q url.Values) {
	keys := slices.Sorted(maps.Keys(f.objects))
	keys = slices.DeleteFunc(
		keys,
		func(k string) bool { return !strings.HasPrefix(k, q.Get("prefix")) || k <= q.Get("continuation-token") },
	)
	more := len(keys) > f.page
	keys = keys[:min(len(keys), f.page)]
	fmt.Fprintf(w, "<ListBucketResult><IsTruncated>%t</IsTruncated>", more)
	if more {
		fmt.Fprintf(w, "<NextContinuationToken>%s</NextContinuationToken>", keys[len(keys)-1])
	}
	for _, k := range keys {
		fmt.Fprintf(w, "<Contents><Key>%s</Key><Size>%d</Size></Contents>", k, len(f.objects[k]))
	}
	fmt.Fprint(w, "</ListBucketResult>")
}

// withS3 gives a machine a target in a fake service.
func withS3(t *testing.T, path string, keep int) (*machine, *fakeS3) {
	t.Helper()
	m := newMachine(t, "host_a")
	f := newFakeS3(t, func() time.Time { return m.now })
	if err := secret.In(m.Config, "").Set("S3", secret.New(fakeSecret)); err != nil {
		t.Fatal(err)
	}
	if err := m.backups.SetTarget(t.Context(), f.target(path, keep)); err != nil {
		t.Fatal(err)
	}
	return m, f
}

// incompressible is text that does not become shorter.
func incompressible(n int) string {
	var b bytes.Buffer
	for i := 0; b.Len() < n; i++ {
		sum := sha256.Sum256([]byte(strconv.Itoa(i)))
		b.Write(sum[:])
	}
	return b.String()[:n]
}

func TestABucketHoldsBackups(t *testing.T) {
	m, f := withS3(t, "hosts/my house", 2)
	f.page = 1
	large := incompressible(12 << 20) // three parts
	m.put(m.Data, "large", large)
	var made []string
	for range 3 {
		m.now = m.now.Add(time.Hour)
		one, err := m.backups.Create(t.Context(), "cloud", key(password), nil)
		if err != nil {
			t.Fatal(err)
		}
		made = append(made, one.Name)
	}
	got, err := m.backups.List(t.Context(), "cloud")
	if err != nil || len(got) != 2 || got[0].Name != made[2] || got[1].Name != made[1] ||
		got[0].Size != int64(len(f.objects["hosts/my house/"+made[2]])) {
		t.Fatalf("got %+v, %v", got, err)
	}
	if len(f.uploads) > 0 {
		t.Errorf("unfinished: %v", f.uploads)
	}
	if _, manifest, err := m.backups.Info(t.Context(), "cloud", made[1], key(password)); err != nil ||
		len(manifest.Files) == 0 {
		t.Error(err)
	}
	m.put(m.Data, "large", "changed")
	if _, _, err := m.backups.Restore(t.Context(), "cloud", "", key(password), nil); err != nil {
		t.Fatal(err)
	}
	done, leave, err := Enter(m.Folders, quiet)
	if err != nil || done == nil {
		t.Fatal(done, err)
	}
	leave()
	if all(t, m.Data)["large"] != large {
		t.Error("the large file is another one")
	}
	if _, _, err := m.backups.Info(t.Context(), "cloud", newName("x", m.now, false), key(password)); !errors.Is(
		err,
		ErrNoBackup,
	) {
		t.Errorf("got %v", err)
	}
}

func TestAnInterruptedUploadLeavesNothing(t *testing.T) {
	m, f := withS3(t, "", 0)
	m.put(m.Data, "large", incompressible(12<<20))
	ctx, cancel := context.WithCancel(t.Context())
	_, err := m.backups.Create(ctx, "cloud", key(password), func(phase string, done, _ int64) {
		if phase == PhaseWrite && done > 8<<20 {
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	f.fail = func(r *http.Request) (int, string) {
		if r.URL.Query().Get("partNumber") == "2" {
			return http.StatusNotFound, "NoSuchUpload"
		}
		return 0, ""
	}
	if _, err := m.backups.Create(t.Context(), "cloud", key(password), nil); err == nil ||
		!strings.Contains(err.Error(), "send part 2") {
		t.Errorf("got %v", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.uploads)+len(f.objects) > 0 {
		t.Errorf("left: %v, %v", slices.Collect(maps.Keys(f.uploads)), slices.Collect(maps.Keys(f.objects)))
	}
}

func TestAServiceThatStumbles(t *testing.T) {
	m, f := withS3(t, "", 0)
	m.put(m.Data, "file", "text")
	failed := false
	f.fail = func(r *http.Request) (int, string) {
		if r.Method == http.MethodPut && !failed {
			failed = true
			return http.StatusServiceUnavailable, "SlowDown"
		}
		return 0, ""
	}
	if _, err := m.backups.Create(t.Context(), "cloud", key(password), nil); err != nil || !failed {
		t.Errorf("one failure was too much: %v", err)
	}
	// Uploads that were left a day ago are removed, younger ones are not.
	f.mu.Lock()
	old, young := newName("x", m.now, false), newName("x", m.now, false)
	f.uploads["old"] = &fakeUpload{old, m.now.Add(-25 * time.Hour), nil}
	f.uploads["young"] = &fakeUpload{young, m.now.Add(-time.Hour), nil}
	f.mu.Unlock()
	if _, err := m.backups.Create(t.Context(), "cloud", key(password), nil); err != nil {
		t.Fatal(err)
	}
	f.mu.Lock()
	if f.uploads["old"] != nil || f.uploads["young"] == nil {
		t.Errorf("uploads: %v", f.uploads)
	}
	f.mu.Unlock()
	for want, target := range map[string]Target{
		"NoSuchBucket":          func() Target { t := f.target("", 0); t.Bucket = "another"; return t }(),
		"SignatureDoesNotMatch": func() Target { t := f.target("", 0); t.Region = "us-west-1"; return t }(),
	} {
		if err := m.backups.SetTarget(t.Context(), target); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	if got, _ := filepath.Glob(filepath.Join(m.Config, "*.tmp")); len(got) > 0 {
		t.Errorf("left: %v", got)
	}
}

// A connection that breaks is no damage of the backup, and what has gone quiet
// is not waited for.
func TestADownloadThatDoesNotEnd(t *testing.T) {
	m, f := withS3(t, "", 0)
	m.put(m.Data, "file", incompressible(1<<20))
	if _, err := m.backups.Create(t.Context(), "cloud", key(password), nil); err != nil {
		t.Fatal(err)
	}
	f.mu.Lock()
	f.cut = true
	f.mu.Unlock()
	_, _, err := m.backups.Restore(t.Context(), "cloud", "", key(password), nil)
	if err == nil || errors.Is(err, ErrDamaged) || !errors.Is(err, io.ErrUnexpectedEOF) ||
		!strings.Contains(err.Error(), "bytes of the backup arrived") {
		t.Errorf("a cut: got %v", err)
	}
	if waiting, err := Waiting(m.Folders); waiting != nil || err != nil {
		t.Errorf("waiting: %v, %v", waiting, err)
	}
	f.mu.Lock()
	f.cut = false
	f.mu.Unlock()
	if _, _, err := m.backups.Restore(t.Context(), "cloud", "", key(password), nil); err != nil {
		t.Errorf("the next time: %v", err)
	}

	quiet := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "1000")
		w.Header().Set("Last-Modified", "Fri, 24 May 2013 00:00:00 GMT")
		w.Write([]byte("something"))
		http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	defer quiet.Close()
	b, err := newBucket(Target{Endpoint: quiet.URL, Bucket: fakeBucket}, secret.New(fakeSecret), partSize, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	defer b.close()
	b.transport.idle = 50 * time.Millisecond
	body, size, err := b.open(t.Context(), "gatehouse-x")
	if err != nil || size != 1000 {
		t.Fatal(size, err)
	}
	defer body.Close()
	if got, err := io.ReadAll(body); string(got) != "something" || !errors.Is(err, errSilent) {
		t.Errorf("a silence: got %q, %v", got, err)
	}
}

// A list may not be endless, and a request that failed for a moment is repeated.
func TestAnAnswerIsBounded(t *testing.T) {
	requests := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if requests++; requests == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		line := []byte("<Contents><Key>" + strings.Repeat("k", 1000) + "</Key></Contents>")
		fmt.Fprint(w, "<ListBucketResult>")
		for r.Context().Err() == nil {
			if _, err := w.Write(line); err != nil {
				return
			}
		}
	}))
	defer s.Close()
	b, err := newBucket(Target{Endpoint: s.URL, Bucket: fakeBucket}, secret.New(fakeSecret), partSize, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	defer b.close()
	if _, err := b.list(t.Context()); !errors.Is(err, errLarge) || requests != 2 {
		t.Errorf("got %v after %d requests", err, requests)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.list(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: got %v", err)
	}
}
