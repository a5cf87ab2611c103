package backup

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"filippo.io/age"
	"github.com/klauspost/compress/zstd"
)

// WriteSealed writes content to a new file, compressed and encrypted as a backup is. It is for what is no file of a host,
// such as the records of a cluster.
func WriteSealed(path string, key Key, content []byte) (err error) {
	to, err := key.recipients(scryptWork)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err = errors.Join(err, f.Close()); err != nil {
			os.Remove(path)
		}
	}()
	sealed, err := age.Encrypt(f, to...)
	if err != nil {
		return err
	}
	packed, err := zstd.NewWriter(sealed, zstd.WithEncoderConcurrency(1))
	if err != nil {
		return err
	}
	_, err = packed.Write(content)
	return errors.Join(err, packed.Close(), sealed.Close(), f.Sync())
}

// ReadSealed reads what WriteSealed has written, at most limit bytes. The error is ErrPassword if the key is another one,
// and wraps ErrDamaged if the file is not whole.
func ReadSealed(path string, key Key, limit int64) ([]byte, error) {
	by, err := key.identities()
	if err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	plain, err := age.Decrypt(f, by...)
	if _, wrong := errors.AsType[*age.NoIdentityMatchError](err); wrong {
		return nil, ErrPassword
	}
	if err != nil {
		return nil, broken(err)
	}
	packed, err := zstd.NewReader(plain, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
	if err != nil {
		return nil, broken(err)
	}
	defer packed.Close()
	var content bytes.Buffer
	n, err := io.Copy(&content, io.LimitReader(packed, limit+1))
	if err != nil {
		return nil, broken(err)
	}
	if n > limit {
		return nil, fmt.Errorf("%w: it has more than %d bytes", ErrDamaged, limit)
	}
	return content.Bytes(), nil
}
