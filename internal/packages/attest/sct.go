package attest

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/asn1"
	"encoding/binary"
	"errors"
	"fmt"
	"math/big"
	"time"
)

var oidSCT = asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 11129, 2, 4, 2}

// tbsCertificate is a certificate without its signature, to leave an extension out of it.
type tbsCertificate struct {
	Version    int `asn1:"optional,explicit,default:0,tag:0"`
	Serial     *big.Int
	Algorithm  asn1.RawValue
	Issuer     asn1.RawValue
	Validity   asn1.RawValue
	Subject    asn1.RawValue
	PublicKey  asn1.RawValue
	UniqueID   asn1.BitString  `asn1:"optional,tag:1"`
	SubjectID  asn1.BitString  `asn1:"optional,tag:2"`
	Extensions []asn1.RawValue `asn1:"omitempty,optional,explicit,tag:3"`
}

// verifySCT verifies that a log of the root has promised to contain a certificate (RFC 6962, 3.2 and 3.3).
func (r *Root) verifySCT(leaf, issuer *x509.Certificate) error {
	var list []byte
	for _, e := range leaf.Extensions {
		if e.Id.Equal(oidSCT) {
			if rest, err := asn1.Unmarshal(e.Value, &list); err != nil || len(rest) > 0 {
				return errors.New("its list of promises cannot be read")
			}
		}
	}
	entry, err := precertificate(leaf, issuer)
	if err != nil {
		return err
	}
	all, rest, ok := vector16(list)
	if !ok || len(rest) > 0 {
		return errors.New("it has no promise of a log")
	}
	for len(all) > 0 {
		var one []byte
		if one, all, ok = vector16(all); !ok {
			return errors.New("its list of promises cannot be read")
		}
		if r.verifyPromise(one, entry) == nil {
			return nil
		}
	}
	return errors.New("no log of the trusted root promised it")
}

// precertificate is what a log signs of a certificate: the key of its issuer, and the certificate without promises.
func precertificate(leaf, issuer *x509.Certificate) ([]byte, error) {
	var t tbsCertificate
	if rest, err := asn1.Unmarshal(leaf.RawTBSCertificate, &t); err != nil || len(rest) > 0 {
		return nil, fmt.Errorf("decode the certificate: %w", errors.Join(err, errors.New("unexpected form")))
	}
	var kept []asn1.RawValue
	for _, e := range t.Extensions {
		var id asn1.ObjectIdentifier
		if _, err := asn1.Unmarshal(e.Bytes, &id); err != nil {
			return nil, fmt.Errorf("decode an extension: %w", err)
		}
		if !id.Equal(oidSCT) {
			kept = append(kept, e)
		}
	}
	t.Extensions = kept
	der, err := asn1.Marshal(t)
	if err != nil {
		return nil, err
	}
	key := sha256.Sum256(issuer.RawSubjectPublicKeyInfo)
	entry := append(key[:], byte(len(der)>>16), byte(len(der)>>8), byte(len(der)))
	return append(entry, der...), nil
}

// verifyPromise verifies one promise, in the form of TLS.
func (r *Root) verifyPromise(one, entry []byte) error {
	const head = 1 + 32 + 8
	if len(one) < head || one[0] != 0 {
		return errors.New("its form is not known")
	}
	at := time.UnixMilli(int64(binary.BigEndian.Uint64(one[33:head])))
	l := findLog(r.certs, one[1:33], at)
	if l == nil {
		return errors.New("its log is not in the trusted root")
	}
	extensions, rest, ok := vector16(one[head:])
	if !ok || len(rest) < 2 || rest[0] != 4 { // 4 is SHA-256
		return errors.New("its signature is not of a known form")
	}
	signature, rest, ok := vector16(rest[2:])
	if !ok || len(rest) > 0 {
		return errors.New("its signature is not of a known form")
	}
	signed := append([]byte{0, 0}, one[33:head]...) // version 1, a timestamp of a certificate
	signed = append(signed, 0, 1)                   // of a precertificate
	signed = append(signed, entry...)
	signed = binary.BigEndian.AppendUint16(signed, uint16(len(extensions)))
	return verifySignature(l.key, append(signed, extensions...), signature)
}

// vector16 reads bytes that begin with their length in two bytes.
func vector16(b []byte) (one, rest []byte, ok bool) {
	if len(b) < 2 {
		return nil, nil, false
	}
	n := int(binary.BigEndian.Uint16(b))
	if len(b)-2 < n {
		return nil, nil, false
	}
	return b[2 : 2+n], b[2+n:], true
}
