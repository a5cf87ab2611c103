package backup

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"gatehouse/internal/access/secret"
)

const (
	partSize   = 16 << 20 // bytes of one part of an upload, held in memory
	maxParts   = 10_000   // S3 allows no more parts in one upload
	tries      = 5        // of one request, with up to a second in between
	answerWait = 60 * time.Second
	listWait   = 10 * time.Minute
	partWait   = 30 * time.Minute // for one part, with all tries
	maxAnswer  = 8 << 20          // bytes of an answer that is not the content of an object
	maxListed  = 100_000
)

// bucket is a store in an S3-compatible service.
type bucket struct {
	client    *minio.Core
	transport *boundedTransport
	name      string
	prefix    string // "" or ends with /
	part      int    // bytes of a part
	now       func() time.Time
}

func newBucket(t Target, key secret.Text, part int, now func() time.Time) (*bucket, error) {
	u, err := url.Parse(t.Endpoint)
	if err != nil {
		return nil, err
	}
	b := &bucket{name: t.Bucket, part: part, now: now}
	if t.Path != "" {
		b.prefix = t.Path + "/"
	}
	b.transport = &boundedTransport{idle: answerWait, Transport: &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            (&net.Dialer{Timeout: 15 * time.Second}).DialContext,
		TLSHandshakeTimeout:    15 * time.Second,
		ResponseHeaderTimeout:  answerWait,
		MaxResponseHeaderBytes: 64 << 10,
		DisableCompression:     true,
	}}
	b.client, err = minio.NewCore(u.Host, &minio.Options{
		Creds:      credentials.NewStaticV4(t.AccessKey, key.Reveal(), ""),
		Secure:     u.Scheme == "https",
		Region:     cmp.Or(t.Region, "us-east-1"),
		Transport:  b.transport,
		MaxRetries: tries,
	})
	if err != nil {
		return nil, err
	}
	// minio-go derives the address of Amazon's service from the region. The
	// dual-stack address is another host than the one the administrator named,
	// and a firewall may not let it pass.
	b.client.SetS3EnableDualstack(false)
	return b, nil
}

func (b *bucket) close() error {
	b.transport.CloseIdleConnections()
	return nil
}

// failure returns an error of minio-go with the status and the code that the
// service sent. It matches fs.ErrNotExist if the object does not exist.
func failure(err error) error {
	answer, ok := errors.AsType[minio.ErrorResponse](err)
	if !ok || answer.StatusCode == 0 { // minio-go found a mistake in a header itself
		return err
	}
	err = fmt.Errorf("the service answered %d %.100q: %.300q", answer.StatusCode, answer.Code, answer.Message)
	if answer.StatusCode == http.StatusNotFound && answer.Code != minio.NoSuchBucket {
		err = fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	}
	return err
}

func (b *bucket) list(ctx context.Context) (all []Entry, err error) {
	ctx, cancel := context.WithTimeout(ctx, listWait)
	defer cancel()
	listed := 0
	for o := range b.client.ListObjectsIter(ctx, b.name, minio.ListObjectsOptions{
		Prefix:     b.prefix + "gatehouse-",
		FetchOwner: new(bool),
	}) {
		if o.Err != nil {
			return nil, failure(o.Err)
		}
		if listed++; listed > maxListed {
			return nil, fmt.Errorf("the bucket holds more than %d backups", maxListed)
		}
		name := strings.TrimPrefix(o.Key, b.prefix)
		if at, err := createdOf(name); err == nil {
			all = append(all, Entry{Name: name, Created: at, Size: o.Size})
		}
	}
	return all, ctx.Err() // the iterator just stops if ctx is done
}

func (b *bucket) open(ctx context.Context, name string) (io.ReadCloser, int64, error) {
	ctx = context.WithValue(ctx, downloadKey{}, true)
	body, info, _, err := b.client.GetObject(ctx, b.name, b.prefix+name, minio.GetObjectOptions{})
	if err != nil {
		return nil, 0, failure(err)
	}
	return body, max(info.Size, 0), nil
}

func (b *bucket) remove(ctx context.Context, name string) error {
	return failure(b.client.RemoveObject(ctx, b.name, b.prefix+name, minio.RemoveObjectOptions{}))
}

// create starts a multipart upload. The object does not exist before commit. It
// also removes uploads that were abandoned a day ago.
func (b *bucket) create(ctx context.Context, name string) (upload, error) {
	b.removeAbandoned(ctx)
	key := b.prefix + name
	id, err := b.client.NewMultipartUpload(ctx, b.name, key, minio.PutObjectOptions{})
	if err != nil {
		return nil, failure(err)
	}
	if id == "" {
		return nil, errors.New("the service returned no id for the upload")
	}
	return &bucketUpload{bucket: b, ctx: ctx, key: key, id: id, buf: make([]byte, 0, b.part)}, nil
}

// removeAbandoned returns no error, because some services cannot list uploads and
// a backup can be made all the same.
func (b *bucket) removeAbandoned(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 2*answerWait)
	defer cancel()
	found, err := b.client.ListMultipartUploads(ctx, b.name, b.prefix+"gatehouse-", "", "", "", 1000)
	if err != nil {
		return
	}
	for _, u := range found.Uploads {
		_, err := createdOf(strings.TrimPrefix(u.Key, b.prefix))
		if err == nil && b.now().Sub(u.Initiated) > abandoned {
			b.client.AbortMultipartUpload(ctx, b.name, u.Key, u.UploadID)
		}
	}
}

// bucketUpload sends each part when it is full, because the size of a backup is
// not known before its end.
type bucketUpload struct {
	bucket *bucket
	// ctx is that of the upload, because io.Writer has none.
	ctx   context.Context
	key   string
	id    string
	buf   []byte
	parts []minio.CompletePart
	done  bool
}

func (u *bucketUpload) Write(p []byte) (n int, err error) {
	for n < len(p) {
		free := min(cap(u.buf)-len(u.buf), len(p)-n)
		u.buf = append(u.buf, p[n:n+free]...)
		n += free
		if len(u.buf) == cap(u.buf) {
			if err := u.sendParts(u.ctx); err != nil {
				return n, err
			}
		}
	}
	return n, nil
}

func (u *bucketUpload) sendParts(ctx context.Context) error {
	number := len(u.parts) + 1
	if number > maxParts {
		return fmt.Errorf("the backup is larger than %d parts of %d bytes", maxParts, cap(u.buf))
	}
	ctx, cancel := context.WithTimeout(ctx, partWait)
	defer cancel()
	sum := sha256.Sum256(u.buf)
	b := u.bucket
	sent, err := b.client.PutObjectPart(ctx, b.name, u.key, u.id, number, bytes.NewReader(u.buf), int64(len(u.buf)),
		minio.PutObjectPartOptions{
			Sha256Hex:            hex.EncodeToString(sum[:]), // the signature covers it
			DisableContentSha256: true,                       // no second one, chunk by chunk, over plain HTTP
		})
	if err == nil && sent.ETag == "" {
		err = errors.New("the service returned no ETag")
	}
	if err != nil {
		return fmt.Errorf("send part %d: %w", number, failure(err))
	}
	u.parts, u.buf = append(u.parts, minio.CompletePart{PartNumber: number, ETag: sent.ETag}), u.buf[:0]
	return nil
}

func (u *bucketUpload) commit(ctx context.Context) error {
	if len(u.buf) > 0 || len(u.parts) == 0 {
		if err := u.sendParts(ctx); err != nil {
			return err
		}
	}
	b := u.bucket
	if _, err := b.client.CompleteMultipartUpload(ctx, b.name, u.key, u.id, u.parts,
		minio.PutObjectOptions{}); err != nil {
		return failure(err)
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
	u.bucket.client.AbortMultipartUpload(ctx, u.bucket.name, u.key, u.id)
}

// boundedTransport bounds the answers of a service: reading one fails if nothing
// arrives for idle, and if it is larger than maxAnswer, unless it is the content
// of an object.
type boundedTransport struct {
	*http.Transport
	idle time.Duration
}

// downloadKey marks the context of a request for the content of an object.
type downloadKey struct{}

var (
	errSilent = errors.New("the service stopped sending")
	errLarge  = fmt.Errorf("the answer of the service is larger than %d bytes", maxAnswer)
)

func (t *boundedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(r.Context())
	res, err := t.Transport.RoundTrip(r.WithContext(ctx))
	if err != nil {
		cancel(nil)
		return nil, err
	}
	a := &answer{body: res.Body, ctx: ctx, cancel: cancel, wait: t.idle, left: maxAnswer}
	if ctx.Value(downloadKey{}) != nil && res.StatusCode == http.StatusOK {
		a.left = math.MaxInt64
	}
	a.idle = time.AfterFunc(a.wait, func() { cancel(errSilent) })
	res.Body = a
	return res, nil
}

// answer is the body of a bounded answer.
type answer struct {
	body io.ReadCloser
	// ctx is that of the request; its cause says why a read failed.
	ctx    context.Context
	cancel context.CancelCauseFunc
	idle   *time.Timer
	wait   time.Duration
	left   int64 // bytes that may follow
}

func (a *answer) Read(p []byte) (int, error) {
	if a.left <= 0 {
		return 0, errLarge
	}
	a.idle.Reset(a.wait)
	n, err := a.body.Read(p[:min(int64(len(p)), a.left)])
	a.idle.Stop()
	a.left -= int64(n)
	if err != nil && errors.Is(context.Cause(a.ctx), errSilent) {
		err = errSilent
	}
	return n, err
}

func (a *answer) Close() error {
	a.idle.Stop()
	defer a.cancel(nil)
	return a.body.Close()
}
