// Package passkey verifies what authenticators sign for a host, as Web Authentication (WebAuthn) defines it.
//
// It needs no attestation, which would tell the model of an authenticator. Without one the public key of a new
// credential is as trustworthy as the browser that reports it, so it is taken in the form that browsers decode
// (SubjectPublicKeyInfo), and nothing here parses CBOR. Every ceremony needs a verified user, the origin of the host,
// and a challenge that the host has chosen.
package passkey

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strings"
)

// Text is the encoding of bytes in the messages of browsers.
var Text = base64.RawURLEncoding.Strict()

// Algorithms are the COSE numbers of the accepted signatures, the preferred one first: ES256, EdDSA, RS256.
var Algorithms = []int{-7, -8, -257}

const (
	mostText       = 8 << 10 // bytes of one member of a message, before decoding
	mostCredential = 1023    // bytes of the ID of a credential, as WebAuthn limits it
)

// Key is a registered credential.
type Key struct {
	Credential []byte // chosen by the authenticator
	Public     []byte // SubjectPublicKeyInfo
	Origin     string // where it was registered, the only origin at which it is used
	Counter    uint32 // the last one that the authenticator reported; 0 if it has none
}

// Registration is what PublicKeyCredential.toJSON returns for a new credential.
type Registration struct {
	ID       string `json:"id"`
	Response struct {
		ClientDataJSON    string `json:"clientDataJSON"`
		AuthenticatorData string `json:"authenticatorData"`
		PublicKey         string `json:"publicKey"`
	} `json:"response"`
}

// Assertion is what PublicKeyCredential.toJSON returns for the use of a credential.
type Assertion struct {
	ID       string `json:"id" doc:"the credential"`
	Response struct {
		ClientDataJSON    string `json:"clientDataJSON"`
		AuthenticatorData string `json:"authenticatorData"`
		Signature         string `json:"signature"`
		UserHandle        string `json:"userHandle,omitempty"`
	} `json:"response" doc:"as PublicKeyCredential.toJSON() has it"`
}

// The errors of ceremonies that a ledger distinguishes.
var (
	// ErrCounter means that the counter of the authenticator did not increase, so that a copy of it may exist.
	ErrCounter = errors.New("the counter of the passkey went back: there may be a copy of it; remove the passkey")
	// ErrUnverified means that the authenticator did not verify its user, by a fingerprint or a PIN for example.
	ErrUnverified = errors.New("the authenticator did not verify its user")
)

// RelyingParty returns the ID under which browsers keep the passkeys of an origin: its host name. Browsers have no
// passkeys for addresses in numbers.
func RelyingParty(origin string) (string, error) {
	u, err := url.Parse(origin)
	if err != nil || u.Hostname() == "" {
		return "", fmt.Errorf("origin %q: expected scheme://host", origin)
	}
	if _, err := netip.ParseAddr(u.Hostname()); err == nil {
		return "", fmt.Errorf("browsers keep no passkeys for %s: open the page by a name, such as localhost",
			u.Hostname())
	}
	return strings.ToLower(u.Hostname()), nil
}

// Verify returns the key of a registration that answers a challenge at an origin.
func (r *Registration) Verify(origin string, challenge []byte) (k Key, err error) {
	client, err1 := decode("clientDataJSON", r.Response.ClientDataJSON)
	auth, err2 := decode("authenticatorData", r.Response.AuthenticatorData)
	public, err3 := decode("publicKey", r.Response.PublicKey)
	id, err4 := decode("id", r.ID)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return k, err
	}
	if err := checkClient(client, "webauthn.create", origin, challenge); err != nil {
		return k, err
	}
	d, err := parseData(auth, origin)
	switch {
	case err != nil:
		return k, err
	case len(d.credential) == 0 || !bytes.Equal(d.credential, id):
		return k, errors.New("the authenticator made another credential than the browser names")
	}
	if _, err := parseKey(public); err != nil {
		return k, err
	}
	return Key{Credential: id, Public: public, Origin: origin, Counter: d.counter}, nil
}

// Verify checks that the assertion was made with a key, for a challenge, at the origin of the key. It returns the
// counter to store. The caller has found the key by the ID of the assertion.
func (a *Assertion) Verify(k Key, challenge []byte) (counter uint32, err error) {
	client, err1 := decode("clientDataJSON", a.Response.ClientDataJSON)
	auth, err2 := decode("authenticatorData", a.Response.AuthenticatorData)
	signature, err3 := decode("signature", a.Response.Signature)
	id, err4 := decode("id", a.ID)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return 0, err
	}
	if !bytes.Equal(id, k.Credential) {
		return 0, errors.New("the assertion was made with another passkey")
	}
	if err := checkClient(client, "webauthn.get", k.Origin, challenge); err != nil {
		return 0, err
	}
	d, err := parseData(auth, k.Origin)
	if err != nil {
		return 0, err
	}
	sum := sha256.Sum256(client)
	if err := checkSignature(k.Public, append(bytes.Clone(auth), sum[:]...), signature); err != nil {
		return 0, err
	}
	if (d.counter != 0 || k.Counter != 0) && d.counter <= k.Counter {
		return 0, ErrCounter
	}
	return d.counter, nil
}

func decode(name, text string) ([]byte, error) {
	if len(text) > mostText {
		return nil, fmt.Errorf("%s has %d bytes; expected at most %d", name, len(text), mostText)
	}
	b, err := Text.DecodeString(text)
	if err != nil || len(b) == 0 {
		return nil, fmt.Errorf("%s is not base64url", name)
	}
	return b, nil
}

// checkClient checks what the browser says about a ceremony.
func checkClient(text []byte, kind, origin string, challenge []byte) error {
	var said struct {
		Type        string `json:"type"`
		Challenge   string `json:"challenge"`
		Origin      string `json:"origin"`
		CrossOrigin bool   `json:"crossOrigin"`
		TopOrigin   string `json:"topOrigin"`
	}
	if err := json.Unmarshal(text, &said); err != nil {
		return errors.New("clientDataJSON is not JSON")
	}
	answered, err := Text.DecodeString(said.Challenge)
	switch {
	case said.Type != kind:
		return fmt.Errorf("the type of the ceremony is %.32q; expected %s", said.Type, kind)
	case said.Origin != origin || said.CrossOrigin || said.TopOrigin != "":
		return fmt.Errorf("the passkey was used at %.128q, and belongs to %s", said.Origin, origin)
	case err != nil || len(challenge) < 16 || subtle.ConstantTimeCompare(answered, challenge) != 1:
		return errors.New("the passkey answered another challenge")
	}
	return nil
}

// data is the part of an authenticator's data that matters here.
type data struct {
	counter    uint32
	credential []byte // of a registration
}

// Flags of an authenticator's data.
const (
	present  = 1 << 0
	verified = 1 << 2
	eligible = 1 << 3 // for a backup
	backedUp = 1 << 4
	attested = 1 << 6
)

// parseData parses the data of an authenticator: the hash of the relying party, flags, a counter, and for a new
// credential the model of the authenticator and the ID of the credential.
func parseData(b []byte, origin string) (d data, err error) {
	const fixed, model = sha256.Size + 1 + 4, 16
	if len(b) < fixed {
		return d, fmt.Errorf("authenticatorData has %d bytes; expected at least %d", len(b), fixed)
	}
	party, err := RelyingParty(origin)
	if err != nil {
		return d, err
	}
	flags := b[sha256.Size]
	switch sum := sha256.Sum256([]byte(party)); {
	case !bytes.Equal(b[:sha256.Size], sum[:]):
		return d, fmt.Errorf("the passkey was used for another relying party than %s", party)
	case flags&present == 0, flags&verified == 0:
		return d, ErrUnverified
	case flags&backedUp != 0 && flags&eligible == 0:
		return d, errors.New("the authenticator says that a passkey that cannot be backed up is")
	}
	d.counter = binary.BigEndian.Uint32(b[sha256.Size+1:])
	if flags&attested == 0 {
		return d, nil
	}
	rest := b[fixed:]
	if len(rest) < model+2 {
		return d, errors.New("authenticatorData ends inside the credential")
	}
	size := int(binary.BigEndian.Uint16(rest[model:]))
	if rest = rest[model+2:]; size == 0 || size > mostCredential || size > len(rest) {
		return d, fmt.Errorf("the ID of the credential has %d bytes; expected 1 to %d", size,
			min(len(rest), mostCredential))
	}
	d.credential = rest[:size]
	return d, nil
}

// parseKey returns a public key of one of the accepted kinds.
func parseKey(der []byte) (crypto.PublicKey, error) {
	key, err := x509.ParsePKIXPublicKey(der)
	if err != nil {
		return nil, errors.New("publicKey is not a public key")
	}
	switch k := key.(type) {
	case *ecdsa.PublicKey:
		if k.Curve == elliptic.P256() {
			return k, nil
		}
	case ed25519.PublicKey:
		return k, nil
	case *rsa.PublicKey:
		if n := k.N.BitLen(); n >= 2048 && n <= 4096 && k.E >= 3 {
			return k, nil
		}
	}
	return nil, errors.New(
		"publicKey is of a kind that is not accepted; expected P-256, Ed25519, or RSA with 2048 to 4096 bits",
	)
}

func checkSignature(der, signed, signature []byte) error {
	key, err := parseKey(der)
	if err != nil {
		return err
	}
	sum, ok := sha256.Sum256(signed), false
	switch k := key.(type) {
	case *ecdsa.PublicKey:
		ok = ecdsa.VerifyASN1(k, sum[:], signature)
	case ed25519.PublicKey:
		ok = ed25519.Verify(k, signed, signature)
	case *rsa.PublicKey:
		ok = rsa.VerifyPKCS1v15(k, crypto.SHA256, sum[:], signature) == nil
	}
	if !ok {
		return errors.New("the signature is not one of the passkey")
	}
	return nil
}
