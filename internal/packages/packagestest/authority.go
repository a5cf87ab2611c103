package packagestest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/url"
	"testing"
	"time"
)

// Authority is an authority of attestations for tests, with its logs: it does what those of sigstore do.
type Authority struct {
	t        testing.TB
	key      *ecdsa.PrivateKey
	cert     *x509.Certificate
	log, ctl *ecdsa.PrivateKey
	begun    time.Time
}

// NewAuthority makes one.
func NewAuthority(t testing.TB) *Authority {
	t.Helper()
	a := &Authority{t: t, key: newKey(t), log: newKey(t), ctl: newKey(t), begun: time.Now().Add(-time.Hour)}
	raw, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority of a test"}, NotBefore: a.begun,
		NotAfter: a.begun.Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}, &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority of a test"}},
		&a.key.PublicKey, a.key)
	if err == nil {
		a.cert, err = x509.ParseCertificate(raw)
	}
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (a *Authority) public(key *ecdsa.PrivateKey) (raw, id []byte) {
	raw, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		a.t.Fatal(err)
	}
	sum := sha256.Sum256(raw)
	return raw, sum[:]
}

// Root returns the file of trusted roots.
func (a *Authority) Root() []byte {
	logOf := func(key *ecdsa.PrivateKey) any {
		raw, id := a.public(key)
		return []any{map[string]any{"logId": map[string]any{"keyId": id},
			"publicKey": map[string]any{"rawBytes": raw, "validFor": map[string]any{"start": a.begun}}}}
	}
	return a.encode(map[string]any{
		"mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
		"tlogs":     logOf(a.log), "ctlogs": logOf(a.ctl),
		"certificateAuthorities": []any{map[string]any{
			"certChain": map[string]any{"certificates": []any{map[string]any{"rawBytes": a.cert.Raw}}},
			"validFor":  map[string]any{"start": a.begun},
		}},
	})
}

func (a *Authority) encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		a.t.Fatal(err)
	}
	return b
}

func (a *Authority) sign(key *ecdsa.PrivateKey, message []byte) []byte {
	sum := sha256.Sum256(message)
	b, err := ecdsa.SignASN1(rand.Reader, key, sum[:])
	if err != nil {
		a.t.Fatal(err)
	}
	return b
}

// leaf issues a certificate with a promise of the log of certificates.
func (a *Authority) leaf(key *ecdsa.PrivateKey, issuer, repository string) []byte {
	text := func(id int, s string) pkix.Extension {
		value, err := asn1.MarshalWithParams(s, "utf8")
		if err != nil {
			a.t.Fatal(err)
		}
		return pkix.Extension{Id: asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57264, 1, id}, Value: value}
	}
	workflow, err := url.Parse(repository + "/.github/workflows/release.yml@refs/heads/main")
	if err != nil {
		a.t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), NotBefore: time.Now().Add(-time.Minute),
		NotAfter: time.Now().Add(10 * time.Minute), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageCodeSigning}, URIs: []*url.URL{workflow},
		ExtraExtensions: []pkix.Extension{text(8, issuer), text(12, repository)},
	}
	create := func() *x509.Certificate {
		raw, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
		if err != nil {
			a.t.Fatal(err)
		}
		c, err := x509.ParseCertificate(raw)
		if err != nil {
			a.t.Fatal(err)
		}
		return c
	}
	before := create().RawTBSCertificate
	template.ExtraExtensions = append(template.ExtraExtensions, a.promise(before))
	return create().Raw
}

// promise is what the log of certificates signs (RFC 6962).
func (a *Authority) promise(tbs []byte) pkix.Extension {
	_, id := a.public(a.ctl)
	at := binary.BigEndian.AppendUint64(nil, uint64(time.Now().UnixMilli()))
	issuer := sha256.Sum256(a.cert.RawSubjectPublicKeyInfo)
	signed := append([]byte{0, 0}, at...)
	signed = append(append(signed, 0, 1), issuer[:]...)
	signed = append(append(signed, byte(len(tbs)>>16), byte(len(tbs)>>8), byte(len(tbs))), tbs...)
	signature := a.sign(a.ctl, append(signed, 0, 0))
	one := append(append(append([]byte{0}, id...), at...), 0, 0, 4, 3)
	one = append(binary.BigEndian.AppendUint16(one, uint16(len(signature))), signature...)
	list := append(binary.BigEndian.AppendUint16(nil, uint16(len(one))), one...)
	value, err := asn1.Marshal(append(binary.BigEndian.AppendUint16(nil, uint16(len(list))), list...))
	if err != nil {
		a.t.Fatal(err)
	}
	return pkix.Extension{Id: asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 11129, 2, 4, 2}, Value: value}
}

// Bundle attests that an artifact was built from a repository.
func (a *Authority) Bundle(issuer, repository, algorithm, digest string) []byte {
	key := newKey(a.t)
	leaf := a.leaf(key, issuer, repository)
	payload := a.encode(map[string]any{
		"_type": "https://in-toto.io/Statement/v1", "predicateType": "https://slsa.dev/provenance/v1",
		"subject":   []any{map[string]any{"name": "made", "digest": map[string]string{algorithm: digest}}},
		"predicate": map[string]any{},
	})
	const kind = "application/vnd.in-toto+json"
	signature := a.sign(key, fmt.Appendf(nil, "DSSEv1 %d %s %d %s", len(kind), kind, len(payload), payload))
	sum := sha256.Sum256(payload)
	body := a.encode(map[string]any{"apiVersion": "0.0.1", "kind": "dsse", "spec": map[string]any{
		"payloadHash": map[string]string{"algorithm": "sha256", "value": hex.EncodeToString(sum[:])},
		"signatures": []any{map[string]any{"signature": base64.StdEncoding.EncodeToString(signature),
			"verifier": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf})}},
	}})
	_, id := a.public(a.log)
	at := time.Now().Unix()
	promise := a.sign(a.log, fmt.Appendf(nil, `{"body":"%s","integratedTime":%d,"logID":"%s","logIndex":7}`,
		base64.StdEncoding.EncodeToString(body), at, hex.EncodeToString(id)))
	return a.encode(map[string]any{
		"mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
		"dsseEnvelope": map[string]any{
			"payload":     payload,
			"payloadType": kind,
			"signatures":  []any{map[string]any{"sig": signature}},
		},
		"verificationMaterial": map[string]any{
			"certificate": map[string]any{"rawBytes": leaf},
			"tlogEntries": []any{map[string]any{
				"logIndex": "7", "logId": map[string]any{"keyId": id}, "integratedTime": fmt.Sprint(at),
				"inclusionPromise": map[string]any{"signedEntryTimestamp": promise}, "canonicalizedBody": body,
			}},
		},
	})
}

// Signature signs an image as cosign did before bundles: what is signed, and the annotations beside it.
func (a *Authority) Signature(issuer, repository, digest string) (payload []byte, notes map[string]string) {
	key := newKey(a.t)
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.leaf(key, issuer, repository)})
	payload = a.encode(map[string]any{"critical": map[string]any{
		"identity": map[string]string{"docker-reference": "made"},
		"image":    map[string]string{"docker-manifest-digest": digest}, "type": "cosign container image signature",
	}, "optional": nil})
	signature := base64.StdEncoding.EncodeToString(a.sign(key, payload))
	sum := sha256.Sum256(payload)
	body := a.encode(map[string]any{"apiVersion": "0.0.1", "kind": "hashedrekord", "spec": map[string]any{
		"data":      map[string]any{"hash": map[string]string{"algorithm": "sha256", "value": hex.EncodeToString(sum[:])}},
		"signature": map[string]any{"content": signature, "publicKey": map[string]any{"content": certificate}},
	}})
	_, id := a.public(a.log)
	at := time.Now().Unix()
	promise := a.sign(a.log, fmt.Appendf(nil, `{"body":"%s","integratedTime":%d,"logID":"%s","logIndex":7}`,
		base64.StdEncoding.EncodeToString(body), at, hex.EncodeToString(id)))
	entry := a.encode(map[string]any{"SignedEntryTimestamp": promise, "Payload": map[string]any{
		"body": body, "integratedTime": at, "logIndex": 7, "logID": hex.EncodeToString(id),
	}})
	return payload, map[string]string{
		"dev.cosignproject.cosign/signature": signature, "dev.sigstore.cosign/certificate": string(certificate),
		"dev.sigstore.cosign/bundle": string(entry),
	}
}
