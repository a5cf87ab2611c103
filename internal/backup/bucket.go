package backup

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"gatehouse/internal/secret"
)

const (
	partSize   = 16 << 20 // of an upload; held in memory
	maxParts   = 10_000   // of S3
	answerWait = 60 * time.Second
	maxAnswer  = 8 << 20 // bytes of an answer that is no backup
	maxListed  = 100_000
)

// bucket is a store in an S3-compatible service, addressed by path.
type bucket struct {
	client *http.Client
	signer signer
	base   url.URL // endpoint and bucket
	prefix string  // "" or ends with /
	part   int
	idle   time.Duration // for which a download may send nothing
	now    func() time.Time
}

func newBucket(t Target, key secret.Text, part int, now func() time.Time) (*bucket, error) {
	u, err := url.Parse(t.Endpoint)
	if err != nil {
		return nil, err
	}
	region := t.Region
	if region == "" {
		region = "us-east-1"
	}
	b := &bucket{signer: signer{t.AccessKey, key, region}, base: url.URL{Scheme: u.Scheme, Host: u.Host, Path: "/" + t.Bucket}, part: part, idle: answerWait, now: now}
	if t.Path != "" {
		b.prefix = t.Path + "/"
	}
	b.client = &http.Client{
		Transport: &http.Transport{
			Proxy: http.ProxyFromEnvironment, DialContext: (&net.Dialer{Timeout: 15 * time.Second}).DialContext,
			TLSHandshakeTimeout: 15 * time.Second, ResponseHeaderTimeout: answerWait, MaxResponseHeaderBytes: 64 << 10,
			DisableCompression: true,
		},
		// A signature is good for one address.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return b, nil
}

func (b *bucket) close() error {
	b.client.CloseIdleConnections()
	return nil
}

// ask sends a request. The answer is of the 200s; it has to be closed.
func (b *bucket) ask(ctx context.Context, method, key string, query url.Values, body []byte) (*http.Response, error) {
	u := b.base
	if key != "" {
		u.Path += "/" + key
	}
	u.RawPath, u.RawQuery = canonicalPath(u.Path), canonicalQuery(query)
	r, err := http.NewRequestWithContext(ctx, method, u.String(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	b.signer.sign(r, sha256.Sum256(body), b.now())
	res, err := b.client.Do(r)
	if err != nil {
		return nil, err
	}
	if res.StatusCode/100 == 2 {
		return res, nil
	}
	defer res.Body.Close()
	return nil, failure(res)
}

// failure reads what a service says of an error.
func failure(res *http.Response) error {
	var said struct{ Code, Message string }
	text, _ := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	xml.Unmarshal(text, &said) // what is no XML leaves the status
	err := fmt.Errorf("the service answers %d %.100q %.300q", res.StatusCode, said.Code, said.Message)
	if res.StatusCode == http.StatusNotFound && said.Code != "NoSuchBucket" {
		err = fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	}
	return err
}

// answer is ask for what answers in XML.
func (b *bucket) answer(ctx context.Context, method, key string, query url.Values, body []byte, into any) error {
	ctx, cancel := context.WithTimeout(ctx, 2*answerWait)
	defer cancel()
	res, err := b.ask(ctx, method, key, query, body)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil || into == nil {
		return err
	}
	if err := xml.Unmarshal(text, into); err != nil {
		return fmt.Errorf("the service's answer cannot be read: %w", err)
	}
	return nil
}

func (b *bucket) list(ctx context.Context) (all []Entry, err error) {
	query := url.Values{"list-type": {"2"}, "delimiter": {"/"}, "prefix": {b.prefix + "gatehouse-"}}
	for len(all) < maxListed {
		var page struct {
			Contents []struct {
				Key  string
				Size int64
			}
			IsTruncated           bool
			NextContinuationToken string
		}
		if err := b.answer(ctx, http.MethodGet, "", query, nil, &page); err != nil {
			return nil, err
		}
		for _, c := range page.Contents {
			name := strings.TrimPrefix(c.Key, b.prefix)
			if at, err := createdOf(name); err == nil {
				all = append(all, Entry{Name: name, Created: at, Size: c.Size})
			}
		}
		if !page.IsTruncated || page.NextContinuationToken == "" {
			return all, nil
		}
		query.Set("continuation-token", page.NextContinuationToken)
	}
	return nil, fmt.Errorf("there are more than %d backups", maxListed)
}

func (b *bucket) open(ctx context.Context, name string) (io.ReadCloser, int64, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	res, err := b.ask(ctx, http.MethodGet, b.prefix+name, nil, nil)
	if err != nil {
		cancel(nil)
		return nil, 0, err
	}
	idle := time.AfterFunc(b.idle, func() { cancel(errSilent) })
	return &object{res.Body, ctx, cancel, idle, b.idle}, max(res.ContentLength, 0), nil
}

// errSilent ends what waits for a service that has gone quiet.
var errSilent = errors.New("the service sends nothing any more")

// object is the content of one, which ends when nothing comes for a while.
type object struct {
	body   io.ReadCloser
	ctx    context.Context
	cancel context.CancelCauseFunc
	idle   *time.Timer
	wait   time.Duration
}

func (o *object) Read(p []byte) (int, error) {
	o.idle.Reset(o.wait)
	n, err := o.body.Read(p)
	o.idle.Stop()
	if err != nil && errors.Is(context.Cause(o.ctx), errSilent) {
		err = errSilent
	}
	return n, err
}

func (o *object) Close() error {
	o.idle.Stop()
	defer o.cancel(nil)
	return o.body.Close()
}

func (b *bucket) remove(ctx context.Context, name string) error {
	return b.answer(ctx, http.MethodDelete, b.prefix+name, nil, nil, nil)
}

// create begins an upload in parts, which is no object before it is complete.
// It also takes away what others left unfinished a day ago.
func (b *bucket) create(ctx context.Context, name string) (upload, error) {
	b.sweep(ctx)
	var begun struct{ UploadId string }
	if err := b.answer(ctx, http.MethodPost, b.prefix+name, url.Values{"uploads": {""}}, nil, &begun); err != nil {
		return nil, err
	}
	if begun.UploadId == "" {
		return nil, errors.New("the service gave no id for the upload")
	}
	return &bucketUpload{bucket: b, ctx: ctx, key: b.prefix + name, id: begun.UploadId, buf: make([]byte, 0, b.part)}, nil
}

// sweep is no reason not to make a backup: some services cannot list uploads.
func (b *bucket) sweep(ctx context.Context) {
	var left struct {
		Upload []struct {
			Key, UploadId string
			Initiated     time.Time
		}
	}
	query := url.Values{"uploads": {""}, "prefix": {b.prefix + "gatehouse-"}}
	if b.answer(ctx, http.MethodGet, "", query, nil, &left) != nil {
		return
	}
	for _, u := range left.Upload {
		_, err := createdOf(strings.TrimPrefix(u.Key, b.prefix))
		if err == nil && b.now().Sub(u.Initiated) > abandoned {
			b.answer(ctx, http.MethodDelete, u.Key, url.Values{"uploadId": {u.UploadId}}, nil, nil)
		}
	}
}

// bucketUpload sends parts as they fill up.
type bucketUpload struct {
	bucket *bucket
	ctx    context.Context // of Create, in which alone the upload lives
	key    string
	id     string
	buf    []byte
	parts  []part
	done   bool
}

type part struct {
	PartNumber int
	ETag       string
}

func (u *bucketUpload) Write(p []byte) (n int, err error) {
	for n < len(p) {
		room := min(cap(u.buf)-len(u.buf), len(p)-n)
		u.buf = append(u.buf, p[n:n+room]...)
		n += room
		if len(u.buf) == cap(u.buf) {
			if err := u.send(u.ctx); err != nil {
				return n, err
			}
		}
	}
	return n, nil
}

func (u *bucketUpload) send(ctx context.Context) error {
	number := len(u.parts) + 1
	if number > maxParts {
		return fmt.Errorf("the backup is larger than %d parts of %d bytes", maxParts, cap(u.buf))
	}
	query := url.Values{"partNumber": {strconv.Itoa(number)}, "uploadId": {u.id}}
	var tag string
	err := u.again(ctx, func(ctx context.Context) error {
		res, err := u.bucket.ask(ctx, http.MethodPut, u.key, query, u.buf)
		if err != nil {
			return err
		}
		tag = res.Header.Get("ETag")
		return res.Body.Close()
	})
	if err == nil && tag == "" {
		err = errors.New("the service gave no tag")
	}
	if err != nil {
		return fmt.Errorf("send part %d: %w", number, err)
	}
	u.parts, u.buf = append(u.parts, part{number, tag}), u.buf[:0]
	return nil
}

const (
	partTries = 3
	partWait  = 15 * time.Minute // for one part
)

// again tries several times what is the same each time.
func (u *bucketUpload) again(ctx context.Context, f func(context.Context) error) (err error) {
	for try := range partTries {
		if try > 0 {
			select {
			case <-time.After(time.Duration(try) * time.Second):
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		once, cancel := context.WithTimeout(ctx, partWait)
		err = f(once)
		cancel()
		if err == nil || ctx.Err() != nil || errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return err
}

func (u *bucketUpload) commit(ctx context.Context) error {
	if len(u.buf) > 0 || len(u.parts) == 0 {
		if err := u.send(ctx); err != nil {
			return err
		}
	}
	body, err := xml.Marshal(struct {
		XMLName xml.Name `xml:"CompleteMultipartUpload"`
		Part    []part
	}{Part: u.parts})
	if err != nil {
		return err
	}
	// An error can come with status 200, when the service has begun to answer.
	var said struct {
		XMLName xml.Name
		Code    string
		Message string
	}
	if err := u.bucket.answer(ctx, http.MethodPost, u.key, url.Values{"uploadId": {u.id}}, body, &said); err != nil {
		return err
	}
	if said.XMLName.Local == "Error" {
		return fmt.Errorf("the service answers %.100q %.300q", said.Code, said.Message)
	}
	u.done = true
	return nil
}

func (u *bucketUpload) abort() {
	if u.done {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(u.ctx), answerWait)
	defer cancel()
	u.bucket.answer(ctx, http.MethodDelete, u.key, url.Values{"uploadId": {u.id}}, nil, nil)
}
