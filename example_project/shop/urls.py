"""Addresses of the shop."""

from __future__ import annotations

from django.urls import path

from shop import flaky, views

app_name = "shop"
urlpatterns = [
    path("", views.home, name="home"),
    path("uploads/", views.uploads, name="uploads"),
    path("uploads/shipped/<int:number>/", views.import_shipped, name="import-shipped"),
    path("uploads/<int:pk>/", views.upload_page, name="upload"),
    path("orders/", views.orders, name="orders"),
    path("orders/<int:pk>/", views.order_page, name="order"),
    path("orders/<int:pk>/receipt/", views.resend_receipt, name="resend-receipt"),
    path("orders/<int:pk>/cancel/", views.cancel_order, name="cancel-order"),
    path("products/", views.products, name="products"),
    path("products/thumbnails/", views.make_thumbnails, name="make-thumbnails"),
    path("products/<int:pk>/picture/", views.send_picture, name="send-picture"),
    path("jobs/", views.jobs, name="jobs"),
    path("jobs/states/", views.job_states, name="job-states"),
    path("jobs/<uuid:job_id>/<str:action>/", views.change_job, name="change-job"),
    path("partner/orders/<int:pk>/", flaky.partner_hook, name="partner-hook"),
]
