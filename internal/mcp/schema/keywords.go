package schema

import (
	"bytes"
	"encoding/json"
	"strings"
)

// keywords maps the keywords of JSON Schema from their lower-case form.
// encoding/json, which jsonschema-go uses to read a schema, ignores case: it
// would read "miNimum" as "minimum". By the standard an unknown keyword means
// nothing.
var keywords = func() map[string]string {
	all := map[string]string{}
	for word := range strings.FieldsSeq(`$schema $id $ref $comment $defs $anchor $dynamicAnchor $dynamicRef
		$vocabulary $recursiveRef $recursiveAnchor
		id definitions dependencies title description default deprecated readOnly writeOnly examples type enum const
		multipleOf minimum maximum exclusiveMinimum exclusiveMaximum minLength maxLength pattern
		prefixItems items minItems maxItems additionalItems uniqueItems contains minContains maxContains
		unevaluatedItems minProperties maxProperties required
		dependentRequired properties patternProperties additionalProperties propertyNames unevaluatedProperties
		allOf anyOf oneOf not if then else dependentSchemas contentEncoding contentMediaType contentSchema format`) {
		all[strings.ToLower(word)] = word
	}
	return all
}()

// inWrongCase reports whether a key differs from a keyword in case only.
func inWrongCase(key string) bool {
	word, known := keywords[strings.ToLower(key)]
	return known && word != key
}

// dropWrongCase removes the keys of a schema that differ from a keyword in case
// only. It returns nearly every schema unchanged.
func dropWrongCase(raw []byte) ([]byte, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	if !dropWrongCaseIn(v) {
		return raw, nil
	}
	return json.Marshal(v)
}

// dropWrongCaseIn is dropWrongCase in place. It reports whether it removed
// anything.
func dropWrongCaseIn(v any) (changed bool) {
	s, ok := v.(map[string]any)
	if !ok {
		return false
	}
	for key, sub := range s {
		switch key {
		case "properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies":
			named, _ := sub.(map[string]any)
			for _, one := range named {
				changed = dropWrongCaseIn(one) || changed
			}
		case "allOf",
			"anyOf",
			"oneOf",
			"prefixItems",
			"items",
			"additionalItems",
			"contains",
			"not",
			"if",
			"then",
			"else",
			"additionalProperties",
			"propertyNames",
			"unevaluatedItems",
			"unevaluatedProperties",
			"contentSchema":
			list, _ := sub.([]any)
			for _, one := range append(list, sub) {
				changed = dropWrongCaseIn(one) || changed
			}
		default:
			if _, flag := sub.(bool); inWrongCase(key) || flag &&
				(key == "exclusiveMinimum" || key == "exclusiveMaximum") {
				delete(s, key)
				changed = true
			}
		}
	}
	return changed
}
