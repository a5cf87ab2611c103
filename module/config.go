package module

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
)

// DecodeConfig decodes the configuration of a module, which is JSON, into the
// value that into points to. It is how a host implements Deps.Config. Members
// that into does not have, and anything after the value, are errors. Without a
// configuration (section is empty) the value stays as it is.
func DecodeConfig(section json.RawMessage, into any) error {
	if v := reflect.ValueOf(into); v.Kind() != reflect.Pointer || v.IsNil() {
		return fmt.Errorf("decode the configuration into %T: expected a pointer to a value", into)
	}
	if len(section) == 0 {
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(section))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("decode the configuration into %T: %w", into, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("decode the configuration into %T: there is more after the first value", into)
	}
	return nil
}
