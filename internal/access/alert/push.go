package alert

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"net/url"
	"strconv"
	"strings"
	"time"
)

const (
	recordSize = 4096 // the size that RFC 8188 has; a message is one record
	tokenLife  = 12 * time.Hour
)

// push sends a message to a push service, encrypted for the browser (RFC 8030, 8291, 8292).
func (s *Sender) push(ctx context.Context, k kept, sub Subscription, path string) error {
	message, err := json.Marshal(map[string]string{"link": path})
	if err != nil {
		return err
	}
	ephemeral, err := ecdh.P256().GenerateKey(rand.Reader)
	if err != nil {
		return err
	}
	salt := make([]byte, 16)
	rand.Read(salt)
	body, err := encrypt(sub, message, ephemeral, salt)
	if err != nil {
		return err
	}
	private, err := k.private()
	if err != nil {
		return err
	}
	token, err := s.vapid(private, sub.Endpoint)
	if err != nil {
		return err
	}
	public, err := private.PublicKey.Bytes()
	if err != nil {
		return err
	}
	return post(ctx, s.o.Client, sub.Endpoint, body, map[string]string{
		"Content-Type": "application/octet-stream", "Content-Encoding": "aes128gcm",
		"TTL": strconv.Itoa(int(pushLifetime.Seconds())), "Urgency": "high",
		"Authorization": "vapid t=" + token + ", k=" + text.EncodeToString(public),
	})
}

// keys returns the public key and the authentication secret of the browser.
func (s Subscription) keys() (*ecdh.PublicKey, []byte, error) {
	raw, err := text.DecodeString(strings.TrimRight(s.Key, "="))
	if err != nil {
		return nil, nil, errors.New("p256dh is not base64url")
	}
	key, err := ecdh.P256().NewPublicKey(raw)
	if err != nil {
		return nil, nil, errors.New("p256dh is not a point of P-256")
	}
	auth, err := text.DecodeString(strings.TrimRight(s.Auth, "="))
	if err != nil || len(auth) != 16 {
		return nil, nil, errors.New("auth is not 16 bytes in base64url")
	}
	return key, auth, nil
}

// encrypt returns the body of a message as RFC 8291 has it: the header of RFC 8188 with the key of the sender, and one
// record.
func encrypt(sub Subscription, message []byte, ephemeral *ecdh.PrivateKey, salt []byte) ([]byte, error) {
	browser, auth, err := sub.keys()
	if err != nil {
		return nil, err
	}
	shared, err := ephemeral.ECDH(browser)
	if err != nil {
		return nil, err
	}
	own := ephemeral.PublicKey().Bytes()
	info := "WebPush: info\x00" + string(browser.Bytes()) + string(own)
	ikm, err := hkdf.Key(sha256.New, shared, auth, info, 32)
	if err != nil {
		return nil, err
	}
	key, err := hkdf.Key(sha256.New, ikm, salt, "Content-Encoding: aes128gcm\x00", 16)
	if err != nil {
		return nil, err
	}
	nonce, err := hkdf.Key(sha256.New, ikm, salt, "Content-Encoding: nonce\x00", 12)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	sealed, err := cipher.NewGCM(block)
	if err != nil {
		return nil, err
	}
	head := append([]byte(nil), salt...)
	head = binary.BigEndian.AppendUint32(head, recordSize)
	head = append(head, byte(len(own)))
	head = append(head, own...)
	last := append(append([]byte(nil), message...), 2) // the delimiter of the last record
	return sealed.Seal(head, nonce, last, nil), nil
}

// vapid returns the token by which a push service knows this host: a JWT with ES256 for the origin of the service.
func (s *Sender) vapid(key *ecdsa.PrivateKey, endpoint string) (string, error) {
	u, err := url.Parse(endpoint)
	if err != nil {
		return "", errors.New("the address is not a URL")
	}
	claims, err := json.Marshal(map[string]any{
		"aud": u.Scheme + "://" + u.Host, "exp": s.o.Now().Add(tokenLife).Unix(), "sub": s.o.Contact,
	})
	if err != nil {
		return "", err
	}
	signed := text.EncodeToString([]byte(`{"typ":"JWT","alg":"ES256"}`)) + "." + text.EncodeToString(claims)
	hash := sha256.Sum256([]byte(signed))
	r, v, err := ecdsa.Sign(rand.Reader, key, hash[:])
	if err != nil {
		return "", err
	}
	signature := make([]byte, 64)
	r.FillBytes(signature[:32])
	v.FillBytes(signature[32:])
	return signed + "." + text.EncodeToString(signature), nil
}
