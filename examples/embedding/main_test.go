package main

import (
	"testing"

	"gatehouse/module"
	"gatehouse/module/moduletest"
)

// newStore is a fresh store as a module.
func newStore(t *testing.T) module.Module {
	t.Helper()
	return &store{orders: map[string]order{"1": {ID: "1", Customer: "ann", Status: "paid"}}}
}

// An order is shipped once, and the model is told why it is not shipped again.
func TestAnOrderIsShippedOnce(t *testing.T) {
	m := newStore(t)
	var o order
	if refused := moduletest.NewCall(t, "id", "1").Ask(t, m, "order_ship", &o); refused != "" || o.Status != "shipped" {
		t.Fatalf("got %+v, %s", o, refused)
	}
	refused := moduletest.NewCall(t, "id", "1").Ask(t, m, "order_ship", nil)
	if want := "not_paid: order 1 is shipped\nShip it when it is paid."; refused != want {
		t.Errorf("got %q, want %q", refused, want)
	}
}
