package backup

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"gatehouse/internal/secret"
)

// signer signs requests to an S3-compatible service with signature version 4,
// the payload's hash included.
type signer struct {
	accessKey string
	secretKey secret.Text
	region    string
}

const signature = "AWS4-HMAC-SHA256"

// sign adds the headers that prove who asks. Whatever headers r has by then
// are signed; none may be added later.
func (s signer) sign(r *http.Request, payload [sha256.Size]byte, at time.Time) {
	sum := hex.EncodeToString(payload[:])
	at = at.UTC()
	r.Header.Set("X-Amz-Date", at.Format(stamp))
	r.Header.Set("X-Amz-Content-Sha256", sum)
	names, headers := canonicalHeaders(r)
	canonical := strings.Join([]string{r.Method, canonicalPath(r.URL.Path), canonicalQuery(r.URL.Query()), headers, names, sum}, "\n")
	scope := at.Format("20060102") + "/" + s.region + "/s3/aws4_request"
	hashed := sha256.Sum256([]byte(canonical))
	toSign := strings.Join([]string{signature, at.Format(stamp), scope, hex.EncodeToString(hashed[:])}, "\n")
	key := []byte("AWS4" + s.secretKey.Reveal())
	for _, part := range []string{at.Format("20060102"), s.region, "s3", "aws4_request"} {
		key = mac(key, part)
	}
	r.Header.Set("Authorization", signature+" Credential="+s.accessKey+"/"+scope+",SignedHeaders="+names+",Signature="+hex.EncodeToString(mac(key, toSign)))
}

func mac(key []byte, text string) []byte {
	m := hmac.New(sha256.New, key)
	m.Write([]byte(text))
	return m.Sum(nil)
}

func canonicalHeaders(r *http.Request) (names, lines string) {
	all := map[string]string{"host": r.URL.Host}
	for name, values := range r.Header {
		if name == "User-Agent" || name == "Authorization" {
			continue
		}
		var trimmed []string
		for _, v := range values {
			trimmed = append(trimmed, strings.Join(strings.Fields(v), " "))
		}
		all[strings.ToLower(name)] = strings.Join(trimmed, ",")
	}
	var sorted []string
	for name := range all {
		sorted = append(sorted, name)
	}
	slices.Sort(sorted)
	for _, name := range sorted {
		lines += name + ":" + all[name] + "\n"
	}
	return strings.Join(sorted, ";"), lines
}

// canonicalPath escapes all of a path but slashes and what is unreserved.
func canonicalPath(path string) string {
	if path == "" {
		return "/"
	}
	return escape(path, true)
}

func canonicalQuery(q url.Values) string {
	var all []string
	for name, values := range q {
		for _, v := range values {
			all = append(all, escape(name, false)+"="+escape(v, false))
		}
	}
	slices.Sort(all)
	return strings.Join(all, "&")
}

func escape(s string, slashes bool) string {
	const hexDigits = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(s) {
		c := s[i]
		unreserved := c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || strings.IndexByte("-._~", c) >= 0
		if unreserved || c == '/' && slashes {
			b.WriteByte(c)
			continue
		}
		b.Write([]byte{'%', hexDigits[c>>4], hexDigits[c&15]})
	}
	return b.String()
}
