// Package script makes the script that installs a release on Unix.
package script

import (
	_ "embed"
	"encoding/base64"
	"fmt"
	"os"
	"strings"

	"gatehouse/release/product"
)

//go:embed install.sh
var install string

// Write writes install.sh with the addresses and the key of a release.
func Write(r *product.Release) error {
	raw, number := "", ""
	if r.Key != "" {
		key, err := base64.StdEncoding.DecodeString(r.Key)
		if err != nil || len(key) != 42 {
			return fmt.Errorf("%q is not minisign's public key", r.Key)
		}
		raw = base64.StdEncoding.EncodeToString(key[10:])
		number = base64.StdEncoding.EncodeToString(append([]byte("ED"), key[2:10]...)) // of hashed signatures
	}
	text := strings.NewReplacer(
		"@VERSION@", r.Version,
		"@PAGE@", r.Page(),
		"@LATEST@", r.Latest(),
		"@KEY@", r.Key,
		"@RAW@", raw,
		"@NUMBER@", number,
	).Replace(install)
	return os.WriteFile(r.File("install.sh"), []byte(text), 0o755)
}
