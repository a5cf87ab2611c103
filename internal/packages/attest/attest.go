// Package attest verifies attestations of packages: DSSE envelopes in bundles of sigstore, by a file of trusted roots,
// without a network.
//
// A statement is believed if its signature is that of a certificate which an authority of the root issued, with a proof
// of a certificate log in it, at a time at which a transparency log has recorded the signature.
// What the certificate says of the workflow that signed, its issuer and its source repository, is
// the result. Package packages compares it with what was approved.
package attest

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	_ "embed"
	"encoding/asn1"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"
)

// Identity is who signed, as the certificate says.
type Identity struct {
	Issuer     string `json:"issuer"`     // of the login by which the certificate was issued, such as that of a CI
	Repository string `json:"repository"` // address of the source repository
	Workflow   string `json:"workflow,omitempty"`
	Log        int64  `json:"log,omitempty"` // index of the entry in the transparency log
}

// Same reports whether two identities have one issuer and one source repository.
func (i Identity) Same(other Identity) bool {
	return i.Issuer == other.Issuer && strings.EqualFold(i.Repository, other.Repository)
}

func (i Identity) String() string { return i.Repository + ", by the login of " + i.Issuer }

// Bundle is a bundle of sigstore, as far as it is read.
type Bundle struct {
	Envelope struct {
		Payload     []byte `json:"payload"`
		PayloadType string `json:"payloadType"`
		Signatures  []struct {
			Sig []byte `json:"sig"`
		} `json:"signatures"`
	} `json:"dsseEnvelope"`
	Material struct {
		Certificate *rawBytes `json:"certificate"`
		Chain       struct {
			Certificates []rawBytes `json:"certificates"`
		} `json:"x509CertificateChain"`
		Entries []Entry `json:"tlogEntries"`
	} `json:"verificationMaterial"`

	image bool // it is the payload itself that is signed, about an image: see ParseImage
}

type rawBytes struct {
	Raw []byte `json:"rawBytes"`
}

const (
	payloadType   = "application/vnd.in-toto+json"
	largestBundle = 1 << 20
)

// Parse reads a bundle.
func Parse(text []byte) (*Bundle, error) {
	if len(text) > largestBundle {
		return nil, fmt.Errorf("the bundle has more than %d bytes", largestBundle)
	}
	var b Bundle
	if err := json.Unmarshal(text, &b); err != nil {
		return nil, fmt.Errorf("decode the bundle: %w", err)
	}
	return &b, nil
}

// leaf returns the certificate of the signature; ok is false if it was made by a key without one.
func (b *Bundle) leaf() (raw []byte, ok bool) {
	switch {
	case b.Material.Certificate != nil:
		return b.Material.Certificate.Raw, true
	case len(b.Material.Chain.Certificates) > 0:
		return b.Material.Chain.Certificates[0].Raw, true
	}
	return nil, false
}

// HasCertificate reports whether a certificate signed the bundle, and no bare key.
func (b *Bundle) HasCertificate() bool { _, ok := b.leaf(); return ok }

// Verify verifies a bundle about an artifact: algorithm is sha256 or sha512, digest in hexadecimal.
func (r *Root) Verify(b *Bundle, algorithm, digest string) (id Identity, err error) {
	raw, ok := b.leaf()
	if !ok {
		return id, errors.New("it is signed by a key without a certificate")
	}
	leaf, err := x509.ParseCertificate(raw)
	if err != nil {
		return id, fmt.Errorf("its certificate: %w", err)
	}
	if len(b.Envelope.Signatures) != 1 || !b.image && b.Envelope.PayloadType != payloadType {
		return id, errors.New("expected one signature of an in-toto statement")
	}
	signature, message := b.Envelope.Signatures[0].Sig, b.Envelope.Payload
	if !b.image {
		message = preAuth(b.Envelope.PayloadType, b.Envelope.Payload)
	}
	if err := verifySignature(leaf.PublicKey, message, signature); err != nil {
		return id, fmt.Errorf("the signature of the statement: %w", err)
	}
	at, index, err := r.loggedAt(b, raw, signature)
	if err != nil {
		return id, fmt.Errorf("the transparency log: %w", err)
	}
	issuer, err := r.verifyChain(leaf, at)
	if err != nil {
		return id, fmt.Errorf("the certificate: %w", err)
	}
	if err := r.verifySCT(leaf, issuer); err != nil {
		return id, fmt.Errorf("the certificate's log: %w", err)
	}
	check := checkSubject
	if b.image {
		check = checkImage
	}
	if err := check(b.Envelope.Payload, algorithm, digest); err != nil {
		return id, err
	}
	id, err = identityOf(leaf)
	id.Log = index
	return id, err
}

// preAuth is what is signed of a DSSE envelope.
func preAuth(kind string, payload []byte) []byte {
	return fmt.Appendf(nil, "DSSEv1 %d %s %d %s", len(kind), kind, len(payload), payload)
}

func verifySignature(key crypto.PublicKey, message, signature []byte) error {
	sum := sha256.Sum256(message)
	switch key := key.(type) {
	case *ecdsa.PublicKey:
		if ecdsa.VerifyASN1(key, sum[:], signature) {
			return nil
		}
	case ed25519.PublicKey:
		if ed25519.Verify(key, message, signature) {
			return nil
		}
	default:
		return fmt.Errorf("a key of the kind %T is not supported", key)
	}
	return errors.New("it does not verify")
}

// checkSubject requires that a statement is about an artifact.
func checkSubject(payload []byte, algorithm, digest string) error {
	var s struct {
		Subject []struct {
			Digest map[string]string `json:"digest"`
		} `json:"subject"`
	}
	if err := json.Unmarshal(payload, &s); err != nil {
		return fmt.Errorf("decode the statement: %w", err)
	}
	for _, one := range s.Subject {
		if digest != "" && strings.EqualFold(one.Digest[algorithm], digest) {
			return nil
		}
	}
	return fmt.Errorf("the statement is about another artifact than the one with the %s %s", algorithm, digest)
}

// Extensions of the certificates of sigstore (github.com/sigstore/fulcio, docs/oid-info.md).
var (
	oidIssuer     = asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57264, 1, 8}
	oidIssuerRaw  = asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57264, 1, 1}
	oidSource     = asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57264, 1, 12}
	oidRepository = asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57264, 1, 5}
)

// ErrNoSource says that the certificate of what verified otherwise names no issuer and source repository.
var ErrNoSource = errors.New("its certificate names no issuer and source repository")

// identityOf reads a certificate. One of a person, without a source repository, is none that a
// package can be pinned to.
func identityOf(leaf *x509.Certificate) (id Identity, err error) {
	text := func(oid asn1.ObjectIdentifier, raw bool) (s string) {
		for _, e := range leaf.Extensions {
			if !e.Id.Equal(oid) {
				continue
			}
			if raw {
				return string(e.Value)
			}
			if rest, err := asn1.UnmarshalWithParams(e.Value, &s, "utf8"); err == nil && len(rest) == 0 {
				return s
			}
		}
		return ""
	}
	if id.Issuer = text(oidIssuer, false); id.Issuer == "" {
		id.Issuer = text(oidIssuerRaw, true)
	}
	if id.Repository = text(oidSource, false); id.Repository == "" {
		if name := text(oidRepository, true); name != "" && id.Issuer == "https://token.actions.githubusercontent.com" {
			id.Repository = "https://github.com/" + name
		}
	}
	if len(leaf.URIs) == 1 {
		id.Workflow = leaf.URIs[0].String()
	}
	u, err := url.Parse(id.Repository)
	if id.Issuer == "" || err != nil || u.Scheme != "https" || u.Host == "" {
		return id, ErrNoSource
	}
	return id, nil
}

// Root are the authorities and logs that are believed.
type Root struct {
	authorities []authority
	logs, certs []log // transparency logs, and logs of certificates
	Date        time.Time
}

type authority struct {
	chain      []*x509.Certificate // the root last
	start, end time.Time
}

type log struct {
	id         []byte
	key        crypto.PublicKey
	start, end time.Time
}

// inRange reports whether a time is in a range whose end may be open.
func inRange(t, start, end time.Time) bool {
	return !t.Before(start) && (end.IsZero() || !t.After(end))
}

//go:embed trusted_root.json
var builtIn []byte

// BuiltIn returns the root of sigstore's public service that this program was built with.
func BuiltIn() (*Root, error) { return ParseRoot(builtIn) }

// ParseRoot reads a file of trusted roots (application/vnd.dev.sigstore.trustedroot+json).
func ParseRoot(text []byte) (*Root, error) {
	type validity struct {
		Start time.Time `json:"start"`
		End   time.Time `json:"end"`
	}
	type key struct {
		PublicKey struct {
			Raw      []byte   `json:"rawBytes"`
			ValidFor validity `json:"validFor"`
		} `json:"publicKey"`
		LogID struct {
			KeyID []byte `json:"keyId"`
		} `json:"logId"`
	}
	var f struct {
		MediaType   string `json:"mediaType"`
		Logs        []key  `json:"tlogs"`
		CertLogs    []key  `json:"ctlogs"`
		Authorities []struct {
			Chain struct {
				Certificates []rawBytes `json:"certificates"`
			} `json:"certChain"`
			ValidFor validity `json:"validFor"`
		} `json:"certificateAuthorities"`
	}
	if err := json.Unmarshal(text, &f); err != nil ||
		!strings.HasPrefix(f.MediaType, "application/vnd.dev.sigstore.trustedroot") {
		return nil, errors.Join(errors.New("it is no file of trusted roots of sigstore"), err)
	}
	r := &Root{}
	add := func(to *[]log, keys []key) error {
		for _, k := range keys {
			public, err := x509.ParsePKIXPublicKey(k.PublicKey.Raw)
			if err != nil {
				return fmt.Errorf("a key of a log: %w", err)
			}
			*to = append(*to, log{k.LogID.KeyID, public, k.PublicKey.ValidFor.Start, k.PublicKey.ValidFor.End})
			if k.PublicKey.ValidFor.Start.After(r.Date) {
				r.Date = k.PublicKey.ValidFor.Start
			}
		}
		return nil
	}
	if err := errors.Join(add(&r.logs, f.Logs), add(&r.certs, f.CertLogs)); err != nil {
		return nil, err
	}
	for _, a := range f.Authorities {
		one := authority{start: a.ValidFor.Start, end: a.ValidFor.End}
		for _, c := range a.Chain.Certificates {
			cert, err := x509.ParseCertificate(c.Raw)
			if err != nil {
				return nil, fmt.Errorf("a certificate of an authority: %w", err)
			}
			one.chain = append(one.chain, cert)
		}
		if len(one.chain) > 0 {
			r.authorities = append(r.authorities, one)
		}
	}
	if len(r.authorities) == 0 || len(r.logs) == 0 || len(r.certs) == 0 {
		return nil, errors.New(
			"the file of trusted roots has no authority, no transparency log or no log of certificates",
		)
	}
	return r, nil
}

// verifyChain verifies that an authority issued a certificate which was valid at a time. It returns who signed it.
func (r *Root) verifyChain(leaf *x509.Certificate, at time.Time) (issuer *x509.Certificate, err error) {
	err = errors.New("no authority of the trusted root issued it")
	for _, a := range r.authorities {
		if !inRange(at, a.start, a.end) {
			continue
		}
		roots, between := x509.NewCertPool(), x509.NewCertPool()
		roots.AddCert(a.chain[len(a.chain)-1])
		for _, c := range a.chain[:len(a.chain)-1] {
			between.AddCert(c)
		}
		// The name of the workflow may be critical and of a kind that package x509 does not know.
		one := *leaf
		one.UnhandledCriticalExtensions = slices.DeleteFunc(slices.Clone(leaf.UnhandledCriticalExtensions),
			func(id asn1.ObjectIdentifier) bool { return id.Equal(asn1.ObjectIdentifier{2, 5, 29, 17}) })
		chains, failed := one.Verify(x509.VerifyOptions{
			Roots: roots, Intermediates: between, CurrentTime: at,
			KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageCodeSigning},
		})
		if failed == nil {
			return chains[0][1], nil
		}
		err = failed
	}
	return nil, err
}

// Digest returns the digest of an integrity of npm, such as sha512-..., in hexadecimal.
func Digest(integrity string) (algorithm, digest string, err error) {
	first, _, _ := strings.Cut(strings.TrimSpace(integrity), " ")
	algorithm, text, ok := strings.Cut(first, "-")
	raw, err := base64.StdEncoding.DecodeString(text)
	if !ok || err != nil || algorithm != "sha512" && algorithm != "sha256" {
		return "", "", fmt.Errorf("%.100q is no integrity with sha512 or sha256", integrity)
	}
	return algorithm, hex.EncodeToString(raw), nil
}

func sameBytes(a, b []byte) bool { return bytes.Equal(a, b) }
